"""Bulk writes in Postgres: implements the part of CommitApi for them.

Place: between Spark's driver and the tables of the commit.
Invariant: one statement each; the row of the writer says which attempt and which chunk is next.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.metastore.api.commit import NO_COUNTS, BulkDecision, BulkFile, BulkOutcome, BulkProgress, CommitApi
from headrace.metastore.postgres.packing import PackedArray, pack_int4, pack_int8, pack_uuids
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import born_ms, term_ms

_STAGE_BULK_CHUNK = Statement("stage_bulk_chunk", writes=True)
_DECIDE_BULK_WRITE = Statement("decide_bulk_write", writes=True)
_COMMIT_BULK_CHUNK = Statement("commit_bulk_chunk", writes=True)
_OLDEST_BULK_WRITE = Statement("oldest_bulk_write", writes=False)


class PostgresBulkWrites(PostgresNoun):
    """Implements the part of CommitApi for bulk writes."""

    database_ms = calls(CommitApi.database_ms, writes=False)

    async def stage_bulk_chunk(self, attempt: uuid.UUID, chunk: int, files: Sequence[BulkFile]) -> None:
        _check(files)
        ids = [file.file_id for file in files]
        runs = np.array([(number, *run) for number, file in enumerate(files, 1) for run in file.runs], dtype=np.int64)
        number, key, position, length, records, time = runs.T
        await _STAGE_BULK_CHUNK.row(
            self.pool,
            attempt=attempt,
            chunk=chunk,
            file_ids=pack_uuids(ids),
            born_ms=_int8(born_ms(file_id) for file_id in ids),
            until_ms=_int8(born_ms(file_id) + term_ms(file_id) for file_id in ids),
            sizes=_int8(file.size for file in files),
            body_bytes=_int8(sum(run.length for run in file.runs) for file in files),
            run_file=pack_int4(number),
            run_key=pack_int8(key),
            run_position=pack_int8(position),
            run_length=pack_int8(length),
            run_records=pack_int8(records),
            run_time=pack_int8(time),
        )

    async def decide_bulk_write(
        self,
        writer: str,
        batch_id: int,
        attempt: uuid.UUID,
        chunks: int,
        counts: Mapping[int, int] = NO_COUNTS,
        *,
        is_named: bool = False,
    ) -> BulkDecision:
        outcome, *rest = await _DECIDE_BULK_WRITE.row(
            self.pool,
            writer=writer,
            batch_id=batch_id,
            attempt=attempt,
            chunks=chunks,
            topics=_int8(counts),
            counts=pack_int4(np.fromiter(counts.values(), dtype=np.int64)),
            is_named=is_named,
        )
        return BulkDecision(BulkOutcome(outcome), *rest)

    async def commit_bulk_chunk(self, writer: str, attempt: uuid.UUID, chunk: int) -> BulkProgress:
        rows = await _COMMIT_BULK_CHUNK.rows(self.pool, writer=writer, attempt=attempt, chunk=chunk)
        return BulkProgress(*rows[0]) if rows else BulkProgress(chunk, chunk)


async def oldest_bulk_write(pool: Pool) -> float:
    """Return what HousekeepingApi asks for."""
    (seconds,) = await _OLDEST_BULK_WRITE.row(pool)
    return float(seconds)


def _int8(values: Iterable[int]) -> PackedArray:
    return pack_int8(np.fromiter(values, dtype=np.int64))


def _check(files: Sequence[BulkFile]) -> None:
    """InvalidError for what cannot be right."""
    for file in files:
        if not file.runs or not term_ms(file.file_id):
            raise InvalidError(f"bulk write refused: file_id={file.file_id} runs={len(file.runs)}")
        for run in file.runs:
            if run.position < 0 or run.length <= 0 or run.records <= 0 or run.position + run.length > file.size:
                raise InvalidError(f"bulk write refused: file_id={file.file_id} size={file.size} {run}")
