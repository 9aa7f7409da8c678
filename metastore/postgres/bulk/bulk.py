"""Bulk writes in Postgres: implements metastore.api.bulk.BulkWriteApi.

Place: between Spark's driver and the tables of the commit.
Invariant: one statement each; the row of the writer says which attempt and which chunk is next.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.metastore.api.bulk import NO_COUNTS, BulkDecision, BulkFile, BulkOutcome, BulkProgress
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.postgres.packing import PackedArray, pack_int4, pack_int8, pack_uuids
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import born_ms, term_ms

_DATABASE_MS = Statement("database_ms", writes=False)
_STAGE_BULK_CHUNK = Statement("stage_bulk_chunk", writes=True)
_DECIDE_BULK_WRITE = Statement("decide_bulk_write", writes=True)
_COMMIT_BULK_CHUNK = Statement("commit_bulk_chunk", writes=True)
_FINISH_BULK_WRITES = Statement("finish_bulk_writes", writes=True)
_DECIDED_BULK_FILES = Statement("decided_bulk_files", writes=False)
_FORGET_DECIDED_BULK_FILES = Statement("forget_decided_bulk_files", writes=True)
_BULK_FILES_IN_INDEX = Statement("bulk_files_in_index", writes=False)
_ANNOUNCE_COUNTS = Statement("announce_counts", writes=True)
_OLDEST_BULK_WRITE = Statement("oldest_bulk_write", writes=False)
_PRUNE_BULK_WRITES = Statement("prune_bulk_writes", writes=True)


class PostgresBulkWrites:
    """Implements BulkWriteApi, BulkRecordApi, CountAnnouncementApi, and its part of HousekeepingApi."""

    pool: Pool

    async def database_ms(self) -> int:
        (now_ms,) = await _DATABASE_MS.row(self.pool)
        return int(now_ms)

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

    async def decided_bulk_files(self, most: int) -> list[uuid.UUID]:
        return [file_id for (file_id,) in await _DECIDED_BULK_FILES.rows(self.pool, most=most)]

    async def forget_decided_bulk_files(self, token: JobToken, files: Sequence[uuid.UUID]) -> None:
        ids = pack_uuids(files)
        await _FORGET_DECIDED_BULK_FILES.row(self.pool, job_id=token.job_id, epoch=token.epoch, file_ids=ids)

    async def bulk_files_in_index(self, files: Sequence[uuid.UUID]) -> list[bool]:
        rows = await _BULK_FILES_IN_INDEX.rows(self.pool, file_ids=pack_uuids(files))
        return [is_there for (is_there,) in rows]

    async def finish_bulk_writes(self) -> int:
        (committed,) = await _FINISH_BULK_WRITES.row(self.pool)
        return int(committed)

    async def oldest_bulk_write(self) -> float:
        return await oldest_bulk_write(self.pool)

    async def announce_counts(self, topic_ids: Sequence[uuid.UUID]) -> int:
        (left,) = await _ANNOUNCE_COUNTS.row(self.pool, topic_ids=list(topic_ids))
        return int(left)

    async def prune_bulk_writes(self, limit: int) -> int:
        (pruned,) = await _PRUNE_BULK_WRITES.row(self.pool, limit=limit)
        return int(pruned)


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
