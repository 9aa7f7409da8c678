"""The end of segment files: implements metastore.api.files.FileApi.

Place: under the compactor's janitor and sweeper.
Invariant: one statement each, fenced where something is deleted. If a worker crashes, the next one is given
the same files again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.metastore.api.files import FileApi
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.postgres.packing import pack_int8, pack_uuids
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
