"""Compaction in Postgres: waiting files, live extents, the swap (swap_extents.sql).

Place: under the compactor's planner and jobs; implements metastore.api.compaction.CompactionApi.
Invariant: each call is one statement, and all that it changes is fenced by the job's lease in it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.metastore.api.compaction import (
    FileFacts,
    LiveExtents,
    LivePartition,
    NewFile,
    Swap,
    SwapOutcome,
    WaitingFiles,
)
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.postgres.packing import pack_int4, pack_int8, pack_uuids, unpack_extents
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import NotFoundError
from headrace.storage.file_id import born_ms

_WAITING_FILES = Statement("waiting_files", writes=False)
_UNFINISHED_PAYLOADS = Statement("unfinished_payloads", writes=False)
_MERGEABLE_EXTENTS = Statement("find_mergeable_extents", writes=False)
_SWAP_EXTENTS = Statement("swap_extents", writes=True)

_FROM_THE_START = uuid.UUID(int=0)
_SCANNED_LEVEL = 2


class PostgresCompaction(PostgresNoun):
    """Implements metastore.api.compaction.CompactionApi."""

    async def waiting_files(self, scan_from: uuid.UUID, limit: int) -> WaitingFiles:
        rows = await _WAITING_FILES.rows(self.pool, scan_from=scan_from, limit=limit)
        files = [FileFacts(*row) for row in rows]
        scanned = [file.file_id for file in files if file.level == _SCANNED_LEVEL]
        return WaitingFiles(files, scanned[-1] if len(scanned) == limit else _FROM_THE_START)

    async def unfinished_payloads(self, *kinds: str) -> list[list[bytes]]:
        found: dict[str, list[bytes]] = {kind: [] for kind in kinds}
        for kind, payload in await _UNFINISHED_PAYLOADS.rows(self.pool, kinds=list(kinds)):
            found[kind].append(payload)
        return [found[kind] for kind in kinds]

    async def live_extents(self, file_ids: Sequence[uuid.UUID]) -> LiveExtents:
        rows = await _MERGEABLE_EXTENTS.rows(self.pool, file_ids=pack_uuids(file_ids))
        return LiveExtents(
            rows[0][0],
            [live_partition(*row[1:]) for row in rows if row[1] is not None],
        )

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        if not swaps:
            return []
        (outcomes,) = await _SWAP_EXTENTS.row(self.pool, **swap_parameters(token, file, swaps))
        return swap_outcomes(file, outcomes)


def live_partition(
    key: int,
    topic_id: uuid.UUID,
    index: int,
    compression_type: str,
    max_bytes: str | None,
    packed: bytes,
    roll_offset: int,
    *cleaned_offset: int,
) -> LivePartition:
    """Return it from the columns of find_mergeable_extents, or of find_parts_to_clean."""
    most = int(max_bytes) if max_bytes else None
    extents = unpack_extents(packed)
    return LivePartition(key, topic_id, index, compression_type, extents, most, roll_offset, *cleaned_offset)


def swap_parameters(token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> dict[str, Any]:
    """Return what swap_extents takes."""
    columns = np.array([swap[:-1] for swap in swaps], dtype=np.int64).T
    keys, bases, lasts, positions, lengths, leader_epochs, times = columns
    inputs = [(number, *entry) for number, swap in enumerate(swaps, start=1) for entry in swap.inputs]
    return {
        "job_id": token.job_id,
        "epoch": token.epoch,
        "file_id": file.file_id,
        "born_ms": born_ms(file.file_id),
        "level": file.level,
        "size": file.size,
        "body_bytes": file.body_bytes,
        "key": pack_int8(keys),
        "base": pack_int8(bases),
        "last": pack_int8(lasts),
        "position": pack_int8(positions),
        "length": pack_int8(lengths),
        "leader_epoch": pack_int4(leader_epochs),
        "time": pack_int8(times),
        "input_swap": pack_int4(np.array([number for number, _, _ in inputs])),
        "input_last": pack_int8(np.array([last for _, last, _ in inputs])),
        "input_file": pack_uuids([file_id for _, _, file_id in inputs]),
    }


def swap_outcomes(file: NewFile, outcomes: Sequence[int] | None) -> list[SwapOutcome]:
    """Return what swap_extents returned; NotFoundError if the file's id cannot be used any more."""
    if outcomes is None:
        raise NotFoundError(f"file id cannot be used any more: file={file.file_id}")
    return [SwapOutcome(outcome) for outcome in outcomes]
