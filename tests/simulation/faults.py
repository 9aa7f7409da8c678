"""What can go wrong, and how often it did: the fault model of the whole simulation.

Place: drawn from by every fake (remote.py, network.py, bucket.py, database.py) and by nemesis.py.
Invariant: a fault is named where it is injected, and counted when it is. Once the world is calm no
new ones happen; what is already under way (a late commit) still arrives.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Iterable, Mapping


class Fault(enum.StrEnum):
    """Everything that is injected."""

    # a request of an agent to the metastore or the bucket
    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost after success"
    CUT = "connection reset, nothing happened, unknown to all"
    LATE = "outcome unknown, and it happens long after"
    SLOW = "slow"
    THROTTLED = "503 slow down"
    TRUNCATED = "body truncated"
    ALTERED = "bit of a body altered, unnoticed on the way"
    KEPT_SHORT = "object kept short"
    STALE_LIST = "stale list"
    PARTIAL_PAGE = "feed page cut short"
    LAGGING_FEED = "feed poll lags"
    KILLED_AT_STEP = "agent killed at a step"
    FROZEN_AT_STEP = "agent paused at a step"
    POISONED = "file that the metastore refuses with all that is sent along"
    CONDEMNED_AT_STEP = "file condemned right after its put"
    FENCED_IN_DOUBT = "agent fenced while its commit is still under way"
    UNREGISTERED_IN_DOUBT = "agent's registration gone, and the answer of its last commit too"
    # a client's request to an agent
    RESET_BEFORE = "client connection reset before the request"
    RESET_AFTER = "client connection reset after the request"
    SLOW_CLIENT = "slow client connection"
    HALF_OPEN = "connection to a dead agent left half open"
    # a call between agents of a zone
    NEIGHBOUR_CUT = "connection between agents refused or cut"
    NEIGHBOUR_SILENT = "connection between agents silent, unnoticed"
    NEIGHBOUR_SLOW = "slow connection between agents"
    NEIGHBOUR_ALTERED = "bit altered between agents"
    # what happens to the world
    KILLED = "agent killed"
    RESTARTED = "agent told to stop, drained and started again"
    FROZEN = "agent paused"
    FENCED = "agent fenced"
    UNREGISTERED = "agent's registration gone"
    WALL_JUMP = "agent's wall clock jumped"
    DATABASE_JUMP = "database clock jumped"
    REPLAYED = "request delivered again, through another agent"
    FEED_FORGOTTEN = "feed rows forgotten"
    LOG_START_MOVED = "records deleted up to an offset"
    INCARNATION = "metastore under a new incarnation id"
    SWEPT = "sweeper run"
    MERGED = "extents merged and swapped"
    CLEANED = "pass of cleaning by key begun"
    WORKED = "job on a cluster with keys of segments begun"
    BUCKET_SILENT = "bucket does not answer an agent that looks at the slots of inline files"
    KEPT_INLINE = "file sent to the metastore with its commit"
    MOVED_INLINE = "job of a mover of inline files begun"
    SLOT_EMPTIED = "slot of inline files emptied"
    SHARDS_GROWN = "commit shards doubled"
    LEADER_MOVED = "leader of a partition moved"
    EPOCH_RAISED = "leader epoch raised"
    TOPIC_DELETED = "topic deleted"
    TOPIC_CREATED = "topic created again"
    PROMOTED = "metastore replaced by a standby that has everything"
    PROMOTED_BEHIND = "metastore replaced by a standby that lacks commits"
    SPLIT = "the same, and the old one stays up"
    PROMOTED_TWICE = "two standbys promoted to one timeline"
    RESTORED = "metastore restored from a copy"
    CRASHED = "metastore crashed with unflushed WAL and came back"


class Faults:
    """Rates from 0 to 1 per opportunity, and counts of what was injected."""

    def __init__(self, rates: Mapping[Fault, float], rng: random.Random) -> None:
        self.tally: Counter[Fault] = Counter()
        self._rates = dict(rates)
        self._rng = rng
        self._menus: dict[tuple[Fault, ...], list[tuple[Fault, float]]] = {}

    def draw(self, menu: tuple[Fault, ...]) -> Fault | None:
        """One fault of the menu, or none; counted."""
        priced = self._menus.get(menu)
        if priced is None:
            priced = self._menus[menu] = self._priced(menu)
        if not priced:
            return None
        drawn = self._rng.random()
        for fault, limit in priced:
            if drawn < limit:
                self.tally[fault] += 1
                return fault
        return None

    def strikes(self, fault: Fault) -> bool:
        """Return whether this one fault happens now; counted."""
        return self.draw((fault,)) is not None

    def count(self, fault: Fault) -> None:
        """It was injected by a separate plan."""
        self.tally[fault] += 1

    def rate(self, fault: Fault) -> float:
        """Its rate; 0 for one that this schedule does not have."""
        return self._rates.get(fault, 0.0)

    def calm(self) -> None:
        """From now on nothing new goes wrong."""
        self._rates.clear()
        self._menus.clear()

    def _priced(self, menu: Iterable[Fault]) -> list[tuple[Fault, float]]:
        priced, limit = [], 0.0
        for fault in menu:
            rate = self.rate(fault)
            if rate:
                limit += rate
                priced.append((fault, limit))
        return priced
