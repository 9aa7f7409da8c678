"""The sweeper's and the janitor's operations, as tests/metastore/interleavings.py sets them against the others.

Files come of age between rounds: `age` moves the metastore's clock beyond the time for which a row is kept after
its answer, and the readers of before have gone.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass, field

from headrace.metastore.api.commit import FileCommit
from headrace.metastore.api.compaction import NewFile, Swap
from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_file_id
from tests.metastore.lock_gates import ASIDE, Operation, Sessions
from tests.metastore.sessions import claim, move_time
from tests.model.file_model import FileView, ModelWithFiles, ShiftedClock

AGE_MS = 80 * 60_000
"""More than the 75 minutes for which a row is kept."""
PIN_MS = 60_000
"""How far before its lease a reader's plan may reach."""
JANITOR_LEASE_MS = 365 * 86_400_000
ALL = 1_000


@dataclass
class FileEnds:
    """The part of a history that ends files."""

    sessions: Sessions
    store: PostgresMetastore
    seed: int
    ends_files: bool = True
    """Whether these operations happen at all: bugs elsewhere are found sooner without them."""
    model: ModelWithFiles = field(init=False)
    rng: random.Random = field(init=False)
    files: list[FileCommit] = field(default_factory=list)
    swaps: list[tuple[NewFile, list[Swap]]] = field(default_factory=list)
    token: JobToken = field(init=False)
    janitor: JobToken = field(init=False)
    incarnation_id: uuid.UUID = field(init=False)
    purged_rows: int = 0
    """Rows of the latest purge: 1 also if it did no more than to forget that a deleted topic could be restored."""
    has_forgotten: bool = False
    """Whether the model takes it for that; both are tried."""
    pinned_ms: int = field(init=False)
    shift_ms: int = 0

    async def begin_jobs(self) -> None:
        """A janitor until the end, and a compactor until the clock moves on."""
        self.incarnation_id = (await self.store.files.janitor_state()).incarnation_id
        self.janitor = await self._claim("janitor", JANITOR_LEASE_MS)
        await self._begin_compaction()

    async def age(self) -> None:
        """All that is there comes of age, and all readers of it are done."""
        await self.store.jobs.finish_job(self.token)
        self.shift_ms += AGE_MS
        await move_time(await self.sessions.get(ASIDE), self.shift_ms / 1000)
        clock = self.model.clock
        assert isinstance(clock, ShiftedClock)
        clock.shift_ms = self.shift_ms
        await self._begin_compaction()

    async def real_files(self) -> list[FileView]:
        """Return what the metastore's audit says."""
        audited = await self.store.reports.audit_files(uuid.UUID(int=0), 100 * ALL)
        return [FileView(f.file_id, f.state, f.live_bytes, f.dead_ms is not None) for f in audited]

    def new_id(self) -> uuid.UUID:
        """Created now."""
        return new_file_id(time.time_ns() // 1_000_000 + self.shift_ms, self.rng)

    # -- what may happen

    def _condemn(self) -> Operation:
        """The sweeper takes a file for garbage: one that is being committed, merged or gone, or a real orphan.

        One: with ids as young as these, which the sweeper never asks for, a second would wait for its commit
        while the first holds up another.
        """
        known = [file.file_id for file in self.files[-4:]] + [file.file_id for file, _ in self.swaps[-2:]]
        file_id = self.rng.choice([*known, self.new_id()])

        async def real() -> list[uuid.UUID]:
            return await self.store.files.condemn_files(self.janitor, self.incarnation_id, [file_id], min_age_ms=-1_000)

        async def modelled(model: ModelWithFiles) -> list[uuid.UUID]:
            return model.condemn_files([file_id], min_age_ms=-1_000)

        return Operation("condemn", real, modelled)

    def _take_dead_files(self) -> Operation:
        async def real() -> list[tuple[uuid.UUID, bool]]:
            taken = await self.store.files.take_dead_files(self.janitor, self.incarnation_id, limit=ALL)
            return [(file.file_id, file.condemned) for file in taken]

        async def modelled(model: ModelWithFiles) -> list[tuple[uuid.UUID, bool]]:
            return model.take_dead_files(pinned_ms=self.pinned_ms)

        return Operation("take dead files", real, modelled)

    def _drop_files(self) -> Operation:
        """Return what was taken and, as no janitor would, anything else."""
        doomed = [f for f, file in self.model.files.items() if file.state is not FileState.LIVE]
        others = sorted(self.model.files.keys() - set(doomed))
        ids = sorted(set(doomed[-8:]) | set(self.rng.sample(others, min(2, len(others)))))

        async def modelled(model: ModelWithFiles) -> int:
            return model.drop_files(ids)

        return Operation(f"drop {len(ids)} files", lambda: self.store.files.drop_files(self.janitor, ids), modelled)

    def _purge(self) -> Operation:
        """One deleted partition's rows, all or some: it has no time blocks, with so few extents, and two producers."""
        limit = self.rng.choice([3, ALL])

        async def real() -> None:
            self.purged_rows = await self.store.housekeeping.purge_deleted_partitions(limit)

        async def modelled(model: ModelWithFiles) -> None:
            if not self.has_forgotten:
                model.purge(limit)

        return Operation(f"purge {limit}", real, modelled)

    # -- inside

    async def _begin_compaction(self) -> None:
        self.pinned_ms = self.model.clock.wall_ms() - PIN_MS
        self.token = await self._claim("interleaved", 3_600_000)

    async def _claim(self, kind: str, lease_ms: int) -> JobToken:
        job = await claim(self.store, kind, lease_ms=lease_ms)
        return job.token
