"""Decide which flush files are inline: their bytes go into the metastore with their commit, and not into the bucket.

Place: asked by the flusher, which keeps batches that may be inline in a separate file, and by the upload, which
fixes the place of a file when it gets its id. Pure: times are parameters. inline_watch.py reports the state of the
slots. A file is inline if all its topics have low.latency.enable, it is small, and nothing speaks against it: the
agent's share of the cluster's bytes per second, what waits in the metastore, merges that do not keep up, WAL that
Postgres cannot get rid of, commits that take longer than a PUT. Then it goes into the bucket, as every file does
without this policy, and clients notice only the time.
A client never takes all of the agent's share: what it used in a second is at most SHARE_FACTOR times what is left. One
alone still gets the whole rate, and of many that want more than there is, each leaves room for those that want little.
Invariant: nothing here is asked again for a file that has an id. What is not known speaks against it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.metastore.api.inline import NO_SLOT, InlineState

STATE_SECONDS = 40.0
"""How long the slots' state counts: more than two of the longest pauses between two looks."""
BEHIND_FACTOR = 6
"""Merges do not keep up if a slot waits for so many times low.latency.move.ms."""
RETAINED_WAL_BYTES = 4 << 30
"""More than a standby needs that is away for some minutes at the highest rate."""
BURST_S = 1.0
"""Seconds of the rate that may be used at once."""
SHARE_FACTOR = 4.0
SLOW_FACTOR = 1.25
SLOW_AT_LEAST_S = 0.01
"""Commits are not slow below it, also where a PUT is faster: on a directory both take milliseconds."""
ASSUMED_PUT_S = 0.2
"""A PUT counts as so long until one was seen: an agent that gets small files only may never do one. It is rather long,
so that the first commits after a start are not slow by it."""
AGAIN_S = 10.0
"""After slow commits, files are inline again for a try after this time."""
WEIGHT = 0.1
"""Share of a new time in the average."""


class InlineReason(enum.StrEnum):
    """Why a file that could be inline is not."""

    SIZE = "size"
    RATE = "rate"
    HELD = "held"
    """Too many bytes wait in the metastore, or no slot is free."""
    BEHIND = "behind"
    WAL = "wal"
    SLOW = "slow"
    UNKNOWN = "unknown"
    """The state of the slots is not known, or no longer."""
    BUCKET = "bucket"
    """The bucket does not answer, which says whether this Postgres still is the metastore."""
    OFF = "off"
    """low.latency.file.max.bytes is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineLimits:
    """`file_bytes`: largest file; `bytes_s`: this agent's share; `held_bytes`: most that waits; `move_s`: how soon
    files are moved."""

    file_bytes: int
    bytes_s: float
    held_bytes: int
    move_s: float


class InlinePolicy:
    """One per agent. Times on Clock.monotonic(), in seconds."""

    def __init__(self, limits: InlineLimits, on_refused: Callable[[InlineReason], None] = lambda reason: None) -> None:
        """`on_refused`: counts requests."""
        self._limits, self._on_refused = limits, on_refused
        self._state: InlineState | None = None
        self._reaches_bucket = True
        self._state_at = -math.inf
        self._tokens = limits.bytes_s * BURST_S
        self._tokens_at = -math.inf
        self._used: dict[str, int] = {}
        """Bytes by client, of the second that ends then."""
        self._used_until = -math.inf
        self._promised = 0
        """Bytes for the file that is open, which uses them of the rate when it is closed."""
        self._commit_s = 0.0
        self._put_s = 0.0
        self._slow_until = -math.inf
        self.asked_at = -math.inf
        """When a batch last came that may be inline."""

    def change_limits(self, limits: InlineLimits) -> None:
        """The cluster's settings, or its number of agents, may have changed."""
        self._limits = limits

    @property
    def limits(self) -> InlineLimits:
        """Those in force."""
        return self._limits

    def learned(self, state: InlineState, now: float, *, reaches_bucket: bool = True) -> None:
        """Take in the state of the slots, as of `now` at the latest, and whether the bucket answers."""
        self._state, self._state_at, self._reaches_bucket = state, now, reaches_bucket

    def committed(self, seconds: float, now: float) -> None:
        """A commit call with inline files took this long."""
        self._commit_s = _average(self._commit_s, seconds)
        if self._commit_s > max((self._put_s or ASSUMED_PUT_S) * SLOW_FACTOR, SLOW_AT_LEAST_S):
            self._slow_until = now + AGAIN_S
            self._commit_s = 0.0  # the next try is judged by itself

    def stored(self, seconds: float) -> None:
        """A PUT of a flush file took this long."""
        self._put_s = _average(self._put_s, seconds)

    @property
    def held_bytes(self) -> int:
        """What is in the metastore, as it was seen last."""
        return 0 if self._state is None else self._state.held_bytes

    @property
    def oldest_s(self) -> float:
        """The age of the oldest file there, in the same way."""
        return 0.0 if self._state is None else self._state.oldest_ms / 1000

    def why_not(self, size_bytes: int, now: float) -> InlineReason | None:
        """Return why a file of this size would not be inline; None: it would be."""
        limits, state = self._limits, self._state
        if not limits.file_bytes:
            return InlineReason.OFF
        if size_bytes > limits.file_bytes:
            return InlineReason.SIZE
        if state is None or now - self._state_at > STATE_SECONDS:
            return InlineReason.UNKNOWN
        if not self._reaches_bucket:
            return InlineReason.BUCKET
        if state.slot == NO_SLOT or state.held_bytes >= limits.held_bytes:
            return InlineReason.HELD
        if state.oldest_ms > limits.move_s * 1000 * BEHIND_FACTOR:
            return InlineReason.BEHIND
        if state.archive_fails or state.retained_wal_bytes > RETAINED_WAL_BYTES:
            return InlineReason.WAL
        if now < self._slow_until:
            return InlineReason.SLOW
        self._refill(now)
        return None if self._tokens > 0 else InlineReason.RATE

    def is_refused(self, size_bytes: int, now: float, client: str) -> bool:
        """Return whether a request of this size is not for the file that may be inline, and count it."""
        reason = self.why_not(size_bytes, now)
        if reason is None and not self._use(client, size_bytes, now):
            reason = InlineReason.RATE
        if reason is not None:
            self._on_refused(reason)
        return reason is not None

    def take(self, size_bytes: int, now: float) -> int:
        """Return the slot of a file that gets its id now, and use its bytes of the rate; NO_SLOT if it is not
        inline."""
        self._promised = 0
        if self.why_not(size_bytes, now) is not None:
            return NO_SLOT
        self._tokens -= size_bytes
        assert self._state is not None, "without a state no file is inline"
        return self._state.slot

    def _use(self, client: str, size_bytes: int, now: float) -> bool:
        """Count it for the client; False if it has used its part of the rate."""
        if now >= self._used_until:
            self._used.clear()
            self._used_until = now + BURST_S
        used = self._used.get(client, 0) + size_bytes
        if used > SHARE_FACTOR * (self._tokens - self._promised):
            return False
        self._used[client] = used
        self._promised += size_bytes
        return True

    def _refill(self, now: float) -> None:
        most = self._limits.bytes_s * BURST_S
        passed = now - self._tokens_at
        self._tokens = min(self._tokens + passed * self._limits.bytes_s, most) if passed < math.inf else most
        self._tokens_at = now


def _average(before: float, seconds: float) -> float:
    return before + WEIGHT * (seconds - before) if before else seconds
