"""The end of segment files, in Postgres: implements metastore.files.FileApi.

Place: under the compactor's janitor, sweeper and audit.
Invariant: one statement each, fenced where something is deleted. If the process dies in mid-call,
Postgres finishes it or rolls it back, and the next worker is given the same files again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np

from headrace.metastore.files import (
    AuditedFile,
    DeadFile,
    FileState,
    FileTotals,
    FoundFile,
    JanitorState,
    PartitionName,
)
from headrace.metastore.jobs import JobToken
from headrace.metastore.postgres.packing import pack_int4, pack_int8, pack_uuids, unpack_extents
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.metastore.values import Extent
from headrace.storage.file_id import born_ms

_TAKE_DEAD_FILES = Statement("take_dead_files", writes=True)
_DROP_FILES = Statement("drop_files", writes=True)
_UNNAMED_FILES = Statement("unnamed_files", writes=False)
_CONDEMN_FILES = Statement("condemn_files", writes=True)
_JANITOR_STATE = Statement("janitor_state", writes=False)
_BEGIN_GENERATION = Statement("begin_generation", writes=True)
_RESUME_JANITOR = Statement("resume_janitor", writes=True)
_BEGIN_INCARNATION = Statement("begin_incarnation", writes=True)
_AUDIT_FILES = Statement("audit_files", writes=False)
_PARTITION_NAMES = Statement("partition_names", writes=False)
_REBUILD_FILES = Statement("rebuild_files", writes=True)
_REBUILD_EXTENTS = Statement("rebuild_extents", writes=True)
_FILE_TOTALS = Statement("file_totals", writes=False)


class PostgresFiles:
    """Mixed into PostgresMetastore."""

    pool: Pool

    async def take_dead_files(
        self, token: JobToken, incarnation_id: uuid.UUID, *, delay_ms: int, limit: int
    ) -> list[DeadFile]:
        rows = await _TAKE_DEAD_FILES.rows(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            incarnation_id=incarnation_id,
            delay_ms=delay_ms,
            limit=limit,
        )
        return [DeadFile(*row) for row in rows]

    async def drop_files(self, token: JobToken, file_ids: Sequence[uuid.UUID]) -> int:
        (dropped,) = await _DROP_FILES.row(self.pool, job_id=token.job_id, epoch=token.epoch, ids=pack_uuids(file_ids))
        return int(dropped)

    async def unnamed_files(self, file_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
        return [file_id for (file_id,) in await _UNNAMED_FILES.rows(self.pool, ids=pack_uuids(file_ids))]

    async def condemn_files(
        self, token: JobToken, incarnation_id: uuid.UUID, file_ids: Sequence[uuid.UUID], *, min_age_ms: int
    ) -> list[uuid.UUID]:
        rows = await _CONDEMN_FILES.rows(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            incarnation_id=incarnation_id,
            ids=pack_uuids(file_ids),
            births=pack_int8(np.array([born_ms(file_id) for file_id in file_ids], dtype=np.int64)),
            min_age_ms=min_age_ms,
        )
        return [file_id for (file_id,) in rows]

    async def janitor_state(self) -> JanitorState:
        return JanitorState(*await _JANITOR_STATE.row(self.pool))

    async def begin_generation(self, token: JobToken, incarnation_id: uuid.UUID) -> int:
        (generation,) = await _BEGIN_GENERATION.row(
            self.pool, job_id=token.job_id, epoch=token.epoch, incarnation_id=incarnation_id
        )
        return int(generation)

    async def resume_janitor(self, seen: int) -> int:
        (generation,) = await _RESUME_JANITOR.row(self.pool, seen=seen)
        return int(generation)

    async def begin_incarnation(self) -> uuid.UUID:
        (incarnation_id,) = await _BEGIN_INCARNATION.row(self.pool)
        return uuid.UUID(str(incarnation_id))

    async def audit_files(self, after: uuid.UUID, limit: int) -> list[AuditedFile]:
        return [
            AuditedFile(
                file_id, FileState(state), level, size, live_bytes, committed_ms, dead_ms, unpack_extents(packed)
            )
            for file_id, state, level, size, live_bytes, committed_ms, dead_ms, packed in await _AUDIT_FILES.rows(
                self.pool, after=after, limit=limit
            )
        ]

    async def partition_names(self, partition_keys: Sequence[int]) -> dict[int, PartitionName]:
        keys = pack_int8(np.array(partition_keys, dtype=np.int64))
        return {key: PartitionName(*name) for key, *name in await _PARTITION_NAMES.rows(self.pool, keys=keys)}

    async def rebuild_files(self, files: Sequence[FoundFile]) -> int:
        levels, sizes, body_bytes, live_bytes = np.array([file[1:] for file in files], dtype=np.int64).reshape(-1, 4).T
        (named,) = await _REBUILD_FILES.row(
            self.pool,
            ids=pack_uuids([file.file_id for file in files]),
            births=pack_int8(np.array([born_ms(file.file_id) for file in files], dtype=np.int64)),
            levels=pack_int4(levels),
            sizes=pack_int8(sizes),
            body_bytes=pack_int8(body_bytes),
            live_bytes=pack_int8(live_bytes),
        )
        return int(named)

    async def rebuild_extents(self, extents: Sequence[Extent]) -> None:
        rows = [(e.partition_key, e.base_offset, e.last_offset, e.position, e.length, e.max_timestamp) for e in extents]
        keys, bases, lasts, positions, lengths, times = np.array(rows, dtype=np.int64).reshape(-1, 6).T
        await _REBUILD_EXTENTS.row(
            self.pool,
            key=pack_int8(keys),
            base=pack_int8(bases),
            last=pack_int8(lasts),
            file=pack_uuids([extent.file_id for extent in extents]),
            position=pack_int8(positions),
            length=pack_int8(lengths),
            time=pack_int8(times),
        )

    async def file_totals(self) -> FileTotals:
        return FileTotals(*await _FILE_TOTALS.row(self.pool))
