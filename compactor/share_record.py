"""The bucket's record of share groups: how far they are, which acknowledgements a restore of Postgres lost.

Place: written by the job `record-outcomes` (compactor/outcomes.py), so every 10 seconds; read by `headrace audit
--lost`, which can run while the cluster runs.
Invariant of the record: the object of a life is replaced only under a later lease of the job. On a server that went
back leases have lower epochs (they are of a sequence), so what it does not know is not overwritten before a process
has noticed, at most two seconds later. States of several pages are of several snapshots: each of them was stored.
Cost: one read of share_partitions, and a GET and a PUT if something changed. After a large object some runs are left
out, so that at most BYTES_PER_RUN are written for each run on average.
What the bucket has of each earlier life (metastore/life/recorded_shares.py) is compared with what this life found in
Postgres: the row itself, or what the first write of this life kept of it.
Invariant of losses: a range is listed only if the group had done these records, and this life found them not done:
they are, or were, delivered again. What was acknowledged after the newest recorded state is not listed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from headrace.metastore.api.groups import GroupApi, ShareState, StoredShareState
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import EpochQuery, IndexApi
from headrace.metastore.life.numbers import epoch_floor, life_of_number
from headrace.metastore.life.recorded_shares import STORED, RecordedShares, read_recorded, read_stored, write_recorded
from headrace.metastore.share_states import GroupProgress, lost_ranges
from headrace.storage.clock import Clock
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

ROWS_PER_CALL = 5_000
BYTES_PER_RUN = 1_000_000
STATE_BYTES = 100
"""A state in JSON, about, without `kept`."""


class ShareRecorder:
    """One per worker. Another worker may write in turn: both write what Postgres has."""

    def __init__(self, api: GroupApi, store: ObjectStore, clock: Clock) -> None:
        self._api, self._store, self._clock = api, store, clock
        self._written: tuple[int, bytes] | None = None
        """The life and a digest of what was written last."""
        self._runs_left_out = 0

    async def record(self, life: int, epoch: int) -> None:
        """Write what the groups have done, if that changed. `epoch`: of the job's lease. Raises as metastore and store
        do.
        """
        if self._runs_left_out:
            self._runs_left_out -= 1
            return
        noted_ms, rows = self._clock.wall_ms(), await read_states(self._api)
        states = [row.state for row in rows]
        digest = hashlib.sha256(msgspec.json.encode(states)).digest()
        if self._written == (life, digest):
            return
        before = await read_stored(self._store, life)
        if before is not None and before.epoch >= epoch:
            logger.info("share groups not recorded: a later lease did: life=%d epoch=%d", life, epoch)
            return
        if states or before is not None:
            await write_recorded(self._store, RecordedShares(noted_ms, states, epoch, life, STORED))
        self._written = life, digest
        self._runs_left_out = sum(len(state.kept) + STATE_BYTES for state in states) // BYTES_PER_RUN


async def read_states(api: GroupApi) -> list[StoredShareState]:
    """Return what Postgres has of all groups."""
    rows: list[StoredShareState] = []
    after = ("", -1)
    while page := await api.share_states(after, ROWS_PER_CALL):
        rows += page
        after = page[-1].state.place
        if len(page) < ROWS_PER_CALL:
            break
    return rows


CLOCKS_DIFFER_MS = 60_000
"""Agents and compactors note times by their own clocks."""
Place = tuple[str, int]
"""Group id, partition key."""


class LostShare(NamedTuple):
    """Lost acknowledgements of one group in one partition. `is_known`: whether this life found the group there; if not,
    it began after the backup, or it was deleted since.
    """

    group_id: str
    partition_key: int
    ranges: list[tuple[int, int]]
    is_known: bool

    @property
    def records(self) -> int:
        """How many records were acknowledged."""
        return sum(last - first + 1 for first, last in self.ranges)


class LostShares(NamedTuple):
    """The findings. Times in ms since the epoch: `stored_ms` of the newest state of all groups, `agents_ms` of what an
    agent recorded last; 0 if nothing was recorded.
    """

    lost: list[LostShare]
    stored_ms: int = 0
    agents_ms: int = 0


async def find_lost_shares(api: Metastore, store: ObjectStore, life: int) -> LostShares:
    """Return what the life, the newest one, lacks of what was acknowledged before it."""
    recorded = await read_recorded(store, life)
    answered = newest_states(recorded)
    if not answered:
        return LostShares([])
    found = {row.state.place: row for row in await read_states(api.groups)}
    ends = await _ends(api.index, answered.values())
    lost = []
    for place, state in sorted(answered.items()):
        row = found.get(place)
        before = found_by(row, life)
        ranges = lost_ranges(state.progress, state.begun_offset, before, ends[place]) if place in ends else []
        if ranges:
            lost.append(LostShare(*place, ranges, before is not None))
    stored = max((each.noted_ms for each in recorded if each.writer == STORED), default=0)
    agents = max((each.noted_ms for each in recorded if each.writer != STORED), default=0)
    return LostShares(lost, stored, agents)


def newest_states(recorded: Iterable[RecordedShares]) -> dict[Place, ShareState]:
    """Return the newest state of each group and partition; those are left out that were deleted before the loss, which
    the newest record of all groups shows.
    """
    objects = list(recorded)
    last = max((each for each in objects if each.writer == STORED), key=lambda each: each.life, default=None)
    there = None if last is None else {state.place for state in last.states}
    newest: dict[Place, ShareState] = {}
    for each in objects:
        for state in each.states:
            place = state.place
            if last is not None and there is not None and place not in there and _is_older(each, last):
                continue
            if place not in newest or _order(newest[place]) < _order(state):
                newest[place] = state
    return newest


def found_by(row: StoredShareState | None, life: int) -> GroupProgress | None:
    """Return what this life found of a group in a partition; None if it found nothing there."""
    if row is None:
        return None
    if life_of_number(row.state.coordinator_epoch) < life:
        return row.state.progress  # nothing was written in this life
    return row.found if row.found_life == life else None


def _is_older(each: RecordedShares, last: RecordedShares) -> bool:
    return each.life < last.life or each.noted_ms + CLOCKS_DIFFER_MS < last.noted_ms


def _order(state: ShareState) -> tuple[int, int]:
    return state.coordinator_epoch, state.revision


async def _ends(api: IndexApi, states: Iterable[ShareState]) -> Mapping[Place, int]:
    """Return where the log of the state's life ends here: offsets from there on are of other records. Partitions that
    are gone are left out.
    """
    asked = list(states)
    queries = [
        EpochQuery(state.partition_key, epoch_floor(life_of_number(state.coordinator_epoch) + 1) - 1) for state in asked
    ]
    ends: dict[Place, int] = {}
    for start in range(0, len(queries), ROWS_PER_CALL):
        some = slice(start, start + ROWS_PER_CALL)
        for state, end in zip(asked[some], await api.find_epoch_ends(queries[some]), strict=True):
            if end.known:
                ends[state.place] = end.end_offset
    return ends
