"""Commit: one round trip that orders stored files' batches (functions/commit_files.sql).

Place: between the stored file and the acknowledgement.
Invariant: the call may be repeated as it is; a file id is judged once and answered alike ever after.
What can be told from the batches alone (which partitions and producers there are, which batches
continue each other) is worked out here, where processors are plenty, not in Postgres.
If the process dies here, Postgres finishes the statement or rolls it back; nobody is held up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from metastore.postgres.packing import (
    Column,
    PackedArray,
    pack_bools,
    pack_int2,
    pack_int4,
    pack_int8,
    pack_uuids,
    unpack_answers,
)
from metastore.postgres.statement import Pool, Statement
from metastore.values import BatchAnswer, FileAnswer, FileCommit, FileStatus, StagedBatch
from storage.errors import InvalidError
from storage.file_id import born_ms

RECORDS_MAX = 1 << 28
"""Records of one batch. Six such batches do not wrap around the sequence numbers."""
_INT2_MAX = (1 << 15) - 1
_INT4_MAX = (1 << 31) - 1
_SEQUENCE_MASK = _INT4_MAX

_COMMIT_FILES = Statement("commit_files", writes=True)


async def commit_files(
    pool: Pool,
    node_id: int,
    broker_epoch: int,
    files: Sequence[FileCommit],
    *,
    producer_id_expiration_ms: int,
) -> list[FileAnswer]:
    """metastore.api.CommitApi.commit_files.

    InvalidError for input that no repetition mends: a batch out of range or outside its file, a file
    id twice in one call, or one that was committed with other batches. Nothing has happened then,
    to any of the files.
    """
    if not files:
        return []
    staged = _Staged(files)
    rows = await _COMMIT_FILES.rows(
        pool,
        node_id=node_id,
        broker_epoch=broker_epoch,
        producer_expiration_ms=producer_id_expiration_ms,
        **staged.parameters(),
    )
    return [staged.answer(number, status, packed) for number, (status, packed) in enumerate(rows)]


class _Staged:
    """The batches of a call as columns in order of commit: by partition, then as they came."""

    def __init__(self, files: Sequence[FileCommit]) -> None:
        self.files = files
        if len({file.file_id for file in files}) != len(files):
            raise InvalidError("commit refused: a file id stands twice in one call")
        table = _table(files)
        sizes = [len(file.batches) for file in files]
        file = np.repeat(np.arange(len(files)), sizes)
        _check(files, file, table)
        order = np.argsort(table[:, 0], kind="stable")
        self.file = file[order]
        self.row_in_file = order - np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)[order]
        self.columns = StagedBatch(*table[order].T)

    def parameters(self) -> dict[str, PackedArray]:
        """The statement's parameters, arrays all of them."""
        batch: Any = self.columns
        keys, part = np.unique(batch.partition_key, return_inverse=True)
        end = batch.position + batch.length
        joined = _same_as_before(part) & _same_as_before(self.file) & (batch.position == np.roll(end, 1))
        return {
            "file_ids": pack_uuids([file.file_id for file in self.files]),
            "file_births": pack_int8(np.array([born_ms(file.file_id) for file in self.files])),
            "file_sizes": pack_int8(np.array([file.size for file in self.files])),
            "file_bytes": pack_int8(np.bincount(self.file, batch.length, len(self.files))),
            "keys": pack_int8(keys),
            **_producers(part, batch),
            "batch_file": pack_int4(self.file + 1),
            "batch_part": pack_int4(part + 1),
            "batch_joined": pack_bools(joined),
            "batch_position": pack_int8(batch.position),
            "batch_length": pack_int4(batch.length),
            "batch_records": pack_int4(batch.record_count),
            "batch_time": pack_int8(batch.max_timestamp),
            "batch_epoch": pack_int2(batch.producer_epoch),
            "batch_sequence": pack_int4(batch.base_sequence),
            "batch_leader_epoch": pack_int4(batch.leader_epoch),
            "batch_count": pack_int4(batch.partition_count),
        }

    def answer(self, number: int, status: int, packed: bytes) -> FileAnswer:
        """The answer to file `number`, its batches back in file order."""
        file = self.files[number]
        if status != FileStatus.COMMITTED:
            return FileAnswer(file.file_id, FileStatus(status))
        answers = unpack_answers(packed)
        if len(answers) != len(file.batches):
            raise InvalidError(
                f"file was committed with other batches: file_id={file.file_id} "
                f"then={len(answers)} now={len(file.batches)}"
            )
        in_file_order: list[BatchAnswer] = list(answers)
        for row, answer in zip(self.row_in_file[self.file == number].tolist(), answers, strict=True):
            in_file_order[row] = answer
        return FileAnswer(file.file_id, FileStatus.COMMITTED, in_file_order)


def _table(files: Sequence[FileCommit]) -> Column:
    """All batches as rows of int64."""
    values = chain.from_iterable(chain.from_iterable(file.batches for file in files))
    try:
        return np.fromiter(values, dtype=np.int64).reshape(-1, len(StagedBatch._fields))
    except OverflowError as error:
        raise InvalidError("commit refused: a batch has a number beyond 64 bits") from error


def _check(files: Sequence[FileCommit], file: Column, table: Column) -> None:
    """InvalidError naming the first batch that cannot be right."""
    batch: Any = StagedBatch(*table.T)
    size = np.array([file.size for file in files])[file]
    idempotent = batch.producer_id >= 0
    right = (
        (batch.partition_key >= 0)
        & (batch.position >= 0)
        & (batch.length > 0)
        & (batch.length <= np.minimum(size - batch.position, _INT4_MAX))
        & (batch.record_count > 0)
        & (batch.record_count <= RECORDS_MAX)
        & (batch.producer_epoch >= np.where(idempotent, 0, -1))
        & (batch.producer_epoch <= _INT2_MAX)
        & (batch.base_sequence >= np.where(idempotent, 0, -1))
        & (batch.base_sequence <= _INT4_MAX)
        & (batch.leader_epoch >= -1)
        & (batch.leader_epoch <= _INT4_MAX)
        & (batch.partition_count >= -1)
        & (batch.partition_count <= _INT4_MAX)
    )
    if not right.all():
        row = int(np.argmin(right))
        wrong = StagedBatch(*table[row].tolist())
        raise InvalidError(f"commit refused: file_id={files[file[row]].file_id} size={size[row]} {wrong}")


def _producers(part: Column, batch: Any) -> dict[str, PackedArray]:
    """The distinct (partition, producer id) pairs, and each batch's, counted from 1; 0 without a producer."""
    prod = np.zeros(len(part), dtype=np.int64)
    idempotent = np.flatnonzero(batch.producer_id >= 0)
    rows = idempotent[np.lexsort((batch.producer_id[idempotent], part[idempotent]))]
    opens = ~(_same_as_before(part[rows]) & _same_as_before(batch.producer_id[rows]))
    prod[rows] = np.cumsum(opens)
    epoch, sequence = batch.producer_epoch[rows], batch.base_sequence[rows]
    next_sequence = (sequence + batch.record_count[rows]) & _SEQUENCE_MASK
    continues = _same_as_before(epoch) & (sequence == np.roll(next_sequence, 1))
    first = np.flatnonzero(opens)
    chained = np.logical_and.reduceat(opens | continues, first) if len(first) else opens
    return {
        "prod_part": pack_int4(part[rows][first] + 1),
        "prod_id": pack_int8(batch.producer_id[rows][first]),
        "prod_epoch": pack_int2(epoch[first]),
        "prod_sequence": pack_int4(sequence[first]),
        "prod_chained": pack_bools(chained),
        "batch_prod": pack_int4(prod),
    }


def _same_as_before(column: Column) -> Column:
    """Whether each value equals the one before it; the first does not."""
    same = np.empty(len(column), dtype=bool)
    same[:1] = False
    same[1:] = column[1:] == column[:-1]
    return same
