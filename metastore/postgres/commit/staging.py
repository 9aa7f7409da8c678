"""Batches of a commit call as columns, laid out for the case that every one of them is accepted.

Place: first half of a commit, before the round trip (commit.py).
Invariant: says nothing that the batches alone do not tell: which partitions and producers there are,
which batches are neighbours in bytes or in sequence, how many records come before each. Whether they
are accepted is Postgres' to judge; but it need not sort and group what numpy has grouped here,
where processors are plenty. Rows are numbered from 1 on the other side; 0 is none.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np

from headrace.metastore.api.commit import (
    ALIAS_CODES,
    BatchAnswer,
    BatchOutcome,
    BatchTransaction,
    FileCommit,
    MovedKeys,
    StagedBatch,
    via_alias,
)
from headrace.metastore.api.transaction_state import EPOCH_MAX
from headrace.metastore.keys import PARTITION_BITS
from headrace.metastore.postgres.packing import (
    Column,
    PackedArray,
    pack_bools,
    pack_int2,
    pack_int4,
    pack_int8,
    pack_uuids,
    unpack_answers,
)
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import born_ms

RECORDS_MAX = 1 << 28
"""Records of one batch. Six such batches do not wrap around the sequence numbers."""
RING_BATCHES = 5
DIFFERENT = -2
"""What a partition expects if its batches expect different leader epochs or counts."""
INT2_MAX = (1 << 15) - 1
INT4_MAX = (1 << 31) - 1
INT8_MAX = (1 << 63) - 1
_LOWEST = StagedBatch(
    partition_key=0,
    position=0,
    length=1,
    record_count=1,
    max_timestamp=~INT8_MAX,
    producer_id=~INT8_MAX,
    producer_epoch=-1,
    base_sequence=-1,
    leader_epoch=-1,
    partition_count=via_alias((1 << PARTITION_BITS) - 1),
    transaction=BatchTransaction.NO_TRANSACTION,
)
_LOWEST_OF_IDEMPOTENT = _LOWEST._replace(producer_epoch=0, base_sequence=0)
_HIGHEST = StagedBatch(
    partition_key=INT8_MAX,
    position=INT8_MAX,
    length=INT4_MAX,
    record_count=RECORDS_MAX,
    max_timestamp=INT8_MAX,
    producer_id=INT8_MAX,
    producer_epoch=INT2_MAX,
    base_sequence=INT4_MAX,
    leader_epoch=INT4_MAX,
    partition_count=INT4_MAX,
    transaction=max(BatchTransaction),
)
_LOWEST_ROWS = np.array([_LOWEST, _LOWEST_OF_IDEMPOTENT], dtype=np.int64)
_HIGHEST_ROW = np.array(_HIGHEST, dtype=np.int64)


class Staged:
    """The batches of `files` in order of commit: by partition, then as they came.

    InvalidError for input that cannot be right: a number out of range, a batch outside its file, a
    file id twice.
    """

    def __init__(self, files: Sequence[FileCommit]) -> None:
        self.files = files
        if len({file.file_id for file in files}) != len(files):
            raise InvalidError("commit refused: a file id is named twice in one call")
        table = _table(files)
        sizes = [len(file.batches) for file in files]
        file = np.repeat(np.arange(len(files)), sizes)
        _check(files, file, table)
        order = np.argsort(table[:, 0], kind="stable")
        self._file = file[order]
        self._place = order - np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)[order]
        self._batch: Any = StagedBatch(*table[order].T)
        self._via = np.minimum(self._batch.partition_count - ALIAS_CODES, 1)
        """By batch: 1, or -alias for one that came for an alias of its partition: it is another stream."""
        self._place_neighbours()

    def _place_neighbours(self) -> None:
        """Records before each batch in its partition; runs: neighbours in the bytes of one file and partition."""
        batch = self._batch
        same_part = _same_as_before(batch.partition_key)
        self._part_first = np.flatnonzero(~same_part)
        self._part = np.cumsum(~same_part) - 1
        before = np.cumsum(batch.record_count) - batch.record_count
        self._before = before - before[self._part_first][self._part]
        end = batch.position + batch.length
        joined = same_part & _same_as_before(self._file) & (batch.position == _before(end))
        self._run_first = np.flatnonzero(~joined)
        self._run = np.cumsum(~joined) - 1

    def parameters(self) -> dict[str, PackedArray]:
        """Return what commit_files.sql takes."""
        batch = self._batch
        return {
            "file_id": pack_uuids([file.file_id for file in self.files]),
            "file_born_ms": pack_int8(np.array([born_ms(file.file_id) for file in self.files])),
            "file_size": pack_int8(np.array([file.size for file in self.files])),
            "file_bytes": pack_int8(np.bincount(self._file, batch.length, len(self.files))),
            **self._partitions(),
            "batch_file": pack_int4(self._file + 1),
            "batch_part": pack_int4(self._part + 1),
            "batch_position": pack_int8(batch.position),
            "batch_length": pack_int4(batch.length),
            "batch_records": pack_int4(batch.record_count),
            "batch_time": pack_int8(batch.max_timestamp),
            "batch_epoch": pack_int2(np.where(batch.transaction, -2 - batch.producer_epoch, batch.producer_epoch)),
            "batch_sequence": pack_int4(
                np.where(batch.transaction == BatchTransaction.ANY_PARTITION, ~batch.base_sequence, batch.base_sequence)
            ),
            "batch_leader_epoch": pack_int4(batch.leader_epoch),
            "batch_count": pack_int4(batch.partition_count),
            "batch_before": pack_int8(self._before),
            "batch_run": pack_int4(self._run + 1),
            "run_first": pack_int4(self._run_first + 1),
            "run_last": pack_int4(_lasts(self._run_first, len(self._run)) + 1),
            "run_time": pack_int8(_reduce(np.maximum, batch.max_timestamp, self._run_first)),
            **self._producers(),
        }

    def _partitions(self) -> dict[str, PackedArray]:
        """The distinct partitions; behind them aliases, which have no batches here, but the states of producers."""
        batch = self._batch
        come = np.flatnonzero(self._via <= 0)
        aliases = np.unique((batch.partition_key[come] >> PARTITION_BITS << PARTITION_BITS) - self._via[come])
        nothing = np.full(len(aliases), -1)
        return {
            "part_key": pack_int8(np.append(batch.partition_key[self._part_first], aliases)),
            "part_leader_epoch": pack_int4(np.append(self._expected(batch.leader_epoch), nothing)),
            "part_count": pack_int4(np.append(self._expected(batch.partition_count), nothing)),
        }

    def _expected(self, column: Column) -> Column:
        """Return by partition the value that all its batches share."""
        lowest, highest = (_reduce(function, column, self._part_first) for function in (np.minimum, np.maximum))
        return np.where(lowest == highest, lowest, DIFFERENT)

    def _producers(self) -> dict[str, PackedArray]:
        """The distinct (partition, alias, producer id), and each batch's; 0 without a producer id."""
        batch = self._batch
        idempotent = np.flatnonzero(batch.producer_id >= 0)
        via = self._via[idempotent]
        rows = idempotent[np.lexsort((batch.producer_id[idempotent], via, self._part[idempotent]))]
        opens = ~(
            _same_as_before(self._part[rows])
            & _same_as_before(self._via[rows])
            & _same_as_before(batch.producer_id[rows])
        )
        first = np.flatnonzero(opens)
        last = _lasts(first, len(rows))
        prod = np.cumsum(opens)
        batch_prod = np.zeros(len(batch.producer_id), dtype=np.int64)
        batch_prod[rows] = prod
        sequence = batch.base_sequence[rows]
        next_sequence = (sequence + batch.record_count[rows]) & INT4_MAX
        continues = _same_as_before(batch.producer_epoch[rows]) & (sequence == _before(next_sequence))
        return {
            "batch_prod": pack_int4(batch_prod),
            "prod_id": pack_int8(batch.producer_id[rows[first]]),
            "prod_first": pack_int4(rows[first] + 1),
            "prod_last": pack_int4(rows[last] + 1),
            "prod_chained": pack_bools(_reduce(np.logical_and, opens | continues, first)),
            "recent": pack_int4(rows[last[prod - 1] - np.arange(len(rows)) < RING_BATCHES] + 1),
        }

    def answers(self, number: int, packed: bytes) -> list[BatchAnswer]:
        """Return what a stored answer (packing.sql) says of file `number`, its batches in file order.

        InvalidError when it was given to other batches than these.
        """
        file = self.files[number]
        rows = np.flatnonzero(self._file == number)
        places = self._place[rows]
        if packed[0] == 1:
            answers = unpack_answers(packed[1:])
            check_count(file.file_id, len(answers), len(rows))
            in_file_order = list(answers)
            for place, answer in zip(places.tolist(), answers, strict=True):
                in_file_order[place] = answer
            return in_file_order
        bases = np.frombuffer(packed, dtype=">i8", offset=1)
        opens = ~_same_as_before(self._run[rows])
        check_count(file.file_id, len(bases), int(opens.sum()))
        first = rows[opens][np.cumsum(opens) - 1]
        offsets = np.empty(len(rows), dtype=np.int64)
        offsets[places] = bases[np.cumsum(opens) - 1] + self._before[rows] - self._before[first]
        times = [batch.max_timestamp for batch in file.batches]
        return list(map(BatchAnswer, repeat(BatchOutcome.APPENDED), offsets.tolist(), times))


def check_count(file_id: uuid.UUID, answered: int, asked: int) -> None:
    """InvalidError if a stored answer was given to other batches than these."""
    if answered != asked:
        raise InvalidError(
            f"file was committed with other batches: file_id={file_id} answered={answered} asked={asked}"
        )


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
    lowest = _LOWEST_ROWS[(batch.producer_id >= 0).astype(np.intp)]
    right = ((table >= lowest) & (table <= _HIGHEST_ROW)).all(axis=1)
    right &= batch.length <= size - batch.position
    count = batch.partition_count
    right &= ((count >= min(MovedKeys)) | (count <= ALIAS_CODES)) & (count != DIFFERENT)
    if batch.transaction.any():
        right &= (batch.transaction == 0) | ((batch.producer_id >= 0) & (batch.producer_epoch <= EPOCH_MAX))
    if not right.all():
        row = int(np.argmin(right))
        wrong = StagedBatch(*table[row].tolist())
        raise InvalidError(f"commit refused: file_id={files[file[row]].file_id} size={size[row]} {wrong}")


def _same_as_before(column: Column) -> Column:
    """Return whether each value equals the one before it; the first does not."""
    same = np.empty(len(column), dtype=bool)
    same[:1] = False
    same[1:] = column[1:] == column[:-1]
    return same


def _before(column: Column) -> Column:
    """Each value's predecessor; what the first gets means nothing."""
    before = np.empty_like(column)
    before[:1] = -1
    before[1:] = column[:-1]
    return before


def _lasts(firsts: Column, count: int) -> Column:
    """Return where groups end that begin at `firsts`."""
    return np.append(firsts[1:], count)[: len(firsts)] - 1


def _reduce(function: np.ufunc, column: Column, firsts: Column) -> Column:
    """`function` over each group; groups begin at `firsts`."""
    reduced: Column = function.reduceat(column, firsts) if len(firsts) else column[:0]
    return reduced
