"""Writes to the bucket how far share groups are: what a restore of Postgres would lose of them.

Place: a part of the job `record-outcomes` (compactor/outcomes.py), so every 10 seconds.
Invariant: the object of a life is replaced only under a later lease of the job. On a server that went back leases have
lower epochs (they are of a sequence), so what it does not know is not overwritten before a process has noticed, at most
two seconds later. States of several pages are of several snapshots: each of them was stored.
Cost: one read of share_partitions, and a GET and a PUT if something changed. After a large object some runs are left
out, so that at most BYTES_PER_RUN are written for each run on average.
"""

from __future__ import annotations

import hashlib
import logging

import msgspec

from headrace.metastore.api.groups import GroupApi
from headrace.metastore.api.share_groups import StoredShareState
from headrace.metastore.life.recorded_shares import STORED, RecordedShares, read_stored, write_recorded
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
