"""The end of segment files, or an index made again from the bucket: implements FileApi.

Place: under the compactor's janitor and sweeper; `headrace audit --rebuild-index` (compactor/rebuild.py) makes the
index in a metastore that lost its rows, while no agent runs.
Invariant of deletion: one statement each, fenced where something is deleted. If a worker crashes, the next one is
given the same files again.
Invariant of a rebuild: files first, then their extents, of each partition in offset order.
If the process crashes between two calls, the metastore holds a part of the index: format a new one and start over.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.metastore.api.files import FileApi, FoundFile
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent
from headrace.metastore.postgres.packing import pack_int4, pack_int8, pack_uuids
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.storage.file_id import born_ms, term_ms

_SET_ASIDE_FILES = Statement("set_aside_files", writes=True)
_CONDEMN_FILES = Statement("condemn_files", writes=True)


class PostgresDeletion(PostgresNoun):
    """Implements FileApi."""

    take_dead_files = calls(FileApi.take_dead_files, writes=True)
    drop_files = calls(FileApi.drop_files, writes=True, ids="file_ids")
    unnamed_files = calls(FileApi.unnamed_files, writes=False, ids="file_ids")
    janitor_state = calls(FileApi.janitor_state, writes=False)
    begin_generation = calls(FileApi.begin_generation, writes=True)
    resume_janitor = calls(FileApi.resume_janitor, writes=True)

    async def set_aside_files(self, token: JobToken, delays_ms: Mapping[uuid.UUID, int]) -> None:
        await _SET_ASIDE_FILES.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            ids=pack_uuids(list(delays_ms)),
            delays_ms=pack_int8(np.array(list(delays_ms.values()), dtype=np.int64)),
        )

    async def condemn_files(
        self, token: JobToken, incarnation_id: uuid.UUID, file_ids: Sequence[uuid.UUID], *, min_age_ms: int
    ) -> list[uuid.UUID]:
        rows = await _CONDEMN_FILES.rows(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            incarnation_id=incarnation_id,
            ids=pack_uuids(file_ids),
            births=pack_int8(np.array([born_ms(file_id) + term_ms(file_id) for file_id in file_ids], dtype=np.int64)),
            min_age_ms=min_age_ms,
        )
        return [file_id for (file_id,) in rows]


_REBUILD_FILES = Statement("rebuild_files", writes=True)
_REBUILD_EXTENTS = Statement("rebuild_extents", writes=True)


class PostgresRebuild(PostgresNoun):
    """Names files and their extents again."""

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
            file=pack_uuids([extent.source for extent in extents]),
            position=pack_int8(positions),
            length=pack_int8(lengths),
            time=pack_int8(times),
        )
