"""Log compaction by key in Postgres: roll offsets, cleaned offsets, and the swaps that rely on them.

Place: under the compactor's cleaning planner and jobs; implements metastore.api.cleaning.CleaningApi.
Invariant: each call is one statement, and all that it changes is fenced by the job's lease in it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np

from headrace.metastore.api.cleaning import (
    CleanablePartition,
    CleanedPartition,
    CleaningApi,
    CleaningQuery,
    CleaningState,
    FlushedPart,
    RollTarget,
)
from headrace.metastore.api.compaction import NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.postgres.compaction.compaction import live_partition, swap_outcomes, swap_parameters
from headrace.metastore.postgres.packing import pack_bools, pack_int8, pack_uuids, unpack_aborted
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_DESCRIBE_CLEANING = Statement("describe_cleaning", writes=False)
_ROLL_PARTITIONS = Statement("roll_partitions", writes=True)
_PARTS_TO_CLEAN = Statement("find_parts_to_clean", writes=False)
_ABORTED_RANGES = Statement("aborted_ranges", writes=False)
_SWAP_CLEANED_EXTENTS = Statement("swap_cleaned_extents", writes=True)
_FINISH_CLEANING = Statement("finish_cleaning", writes=True)
_PARTS_IN_FILES = Statement("parts_in_files", writes=False)
_FLUSHED_FILES = Statement("flushed_files_of_parts", writes=False)
_FILES_OF_PARTS = Statement("files_of_parts", writes=False)


class PostgresCleaning(PostgresNoun):
    """Implements metastore.api.cleaning.CleaningApi."""

    mark_uncleanable = calls(CleaningApi.mark_uncleanable, writes=True, key="partition_key")

    async def describe_cleaning(self, queries: Sequence[CleaningQuery]) -> tuple[int, list[CleaningState]]:
        queries = list(queries)
        keys, lags = np.array(queries, dtype=np.int64).reshape(-1, 2).T
        rows = await _DESCRIBE_CLEANING.rows(self.pool, keys=pack_int8(keys), min_lag_ms=pack_int8(lags))
        found = [
            CleaningState(query.partition_key, *row[1:])
            for query, row in zip(queries, rows, strict=True)
            if row[1] is not None
        ]
        return (rows[0][0] if rows else 0), found

    async def roll_partitions(self, targets: Sequence[RollTarget], *, by: JobToken) -> None:
        if not targets:
            return
        await _ROLL_PARTITIONS.row(
            self.pool,
            job_id=by.job_id,
            epoch=by.epoch,
            keys=pack_int8(np.array([target.partition_key for target in targets])),
            since_ms=pack_int8(np.array([target.since_ms for target in targets])),
            rolls=pack_bools(np.array([target.rolls for target in targets])),
        )

    async def cleanable_extents(self, ends: Sequence[tuple[int, int]]) -> tuple[int, list[CleanablePartition]]:
        rows = await _PARTS_TO_CLEAN.rows(self.pool, **parts_below(ends))
        known = [row[1] for row in rows if row[1] is not None]
        # Read afterwards: of each transaction that had ended before, the range is there, or no batch is.
        ended = {key: (log_start, packed) for key, log_start, packed in await self._aborted(known)}
        return rows[0][0], [
            CleanablePartition(
                live_partition(key, *columns),
                cleaned_offset,
                high,
                tuple(unpack_aborted(ended[key][1] or b"")) if key in ended else (),
                ended[key][0] if key in ended else 0,
            )
            for _, key, *columns, cleaned_offset, high in rows
            if key is not None
        ]

    async def _aborted(self, keys: Sequence[int]) -> list[tuple[int, int, bytes | None]]:
        """(partition, its log start, its aborted transactions)."""
        return await _ABORTED_RANGES.rows(self.pool, keys=list(keys)) if keys else []

    async def swap_cleaned_extents(
        self, token: JobToken, file: NewFile, swaps: Sequence[Swap], cleaned_offsets: Sequence[int]
    ) -> list[SwapOutcome]:
        (outcomes,) = await _SWAP_CLEANED_EXTENTS.row(
            self.pool,
            **swap_parameters(token, file, swaps),
            cleaned=pack_int8(np.array(cleaned_offsets, dtype=np.int64)),
        )
        return swap_outcomes(file, outcomes)

    async def finish_cleaning(self, token: JobToken, cleaned: CleanedPartition) -> bool:
        (is_done,) = await _FINISH_CLEANING.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            key=cleaned.partition_key,
            end=cleaned.end,
            last=pack_int8(np.array([extent.last_offset for extent in cleaned.extents], dtype=np.int64)),
            file=pack_uuids([extent.file_id for extent in cleaned.extents]),
            horizon_ms=cleaned.horizon_ms,
        )
        return bool(is_done)

    async def parts_in_files(self, ends: Sequence[tuple[int, int]], file_ids: Sequence[uuid.UUID]) -> set[int]:
        rows = await _PARTS_IN_FILES.rows(self.pool, **parts_below(ends), file_ids=pack_uuids(file_ids))
        return {key for (key,) in rows}

    async def flushed_files(self, ends: Sequence[tuple[int, int]]) -> list[FlushedPart]:
        return [FlushedPart(*row[:3]) for row in await _FLUSHED_FILES.rows(self.pool, **parts_below(ends))]

    async def files_of_parts(self, ends: Sequence[tuple[int, int]]) -> set[uuid.UUID]:
        return {file_id for (file_id,) in await _FILES_OF_PARTS.rows(self.pool, **parts_below(ends))}


def parts_below(ends: Sequence[tuple[int, int]]) -> dict[str, bytes]:
    """Return the parameters that (partition key, end) are."""
    keys, wanted = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return {"keys": pack_int8(keys), "ends": pack_int8(wanted)}
