"""The end of segment files: implements metastore.api.files.FileApi.

Place: under the compactor's janitor and sweeper.
Invariant: one statement each, fenced where something is deleted. If a worker crashes, the next one is given
the same files again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.metastore.api.files import DeadFile, JanitorState
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.postgres.packing import pack_int8, pack_uuids
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.file_id import born_ms, term_ms

_TAKE_DEAD_FILES = Statement("take_dead_files", writes=True)
_DROP_FILES = Statement("drop_files", writes=True)
_SET_ASIDE_FILES = Statement("set_aside_files", writes=True)
_UNNAMED_FILES = Statement("unnamed_files", writes=False)
_CONDEMN_FILES = Statement("condemn_files", writes=True)
_JANITOR_STATE = Statement("janitor_state", writes=False)
_BEGIN_GENERATION = Statement("begin_generation", writes=True)
_RESUME_JANITOR = Statement("resume_janitor", writes=True)


class PostgresDeletion:
    """Implements FileApi."""

    pool: Pool

    async def take_dead_files(self, token: JobToken, incarnation_id: uuid.UUID, *, limit: int) -> list[DeadFile]:
        rows = await _TAKE_DEAD_FILES.rows(
            self.pool, job_id=token.job_id, epoch=token.epoch, incarnation_id=incarnation_id, limit=limit
        )
        return [DeadFile(*row) for row in rows]

    async def drop_files(self, token: JobToken, file_ids: Sequence[uuid.UUID]) -> int:
        (dropped,) = await _DROP_FILES.row(self.pool, job_id=token.job_id, epoch=token.epoch, ids=pack_uuids(file_ids))
        return int(dropped)

    async def set_aside_files(self, token: JobToken, delays_ms: Mapping[uuid.UUID, int]) -> None:
        await _SET_ASIDE_FILES.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            ids=pack_uuids(list(delays_ms)),
            delays_ms=pack_int8(np.array(list(delays_ms.values()), dtype=np.int64)),
        )

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
            births=pack_int8(np.array([born_ms(file_id) + term_ms(file_id) for file_id in file_ids], dtype=np.int64)),
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
