"""How the batches of a commit call group: by partition, neighbours in bytes, producer.

Place: the first half of a Staged (commit.py), which makes the call's parameters of the columns.
Invariant: group_few returns what group_many returns (tests/metastore/test_staging.py compares them on random calls).
group_many takes any call; numpy's hundred calls take 0.2 ms. group_few is plain loops: with a quarter of that for one
batch, as much for FEW_BATCHES, three times as much for 200.
Rows, files, partitions, runs and producers are numbered from 1; 0 is none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from headrace.metastore.api.commit import NO_ALIAS, BatchTransaction, FileCommit, MovedKeys, StagedBatch
from headrace.metastore.keys import PARTITION_BITS
from headrace.metastore.postgres.packing import Column

FEW_BATCHES = 32
RING_BATCHES = 5
SEQUENCE_MAX = (1 << 31) - 1
_RING = struct.Struct(">iiq")
_RING_LAYOUT = np.dtype([("first", ">i4"), ("last", ">i4"), ("time", ">i8")])

Values = Any
"""A Column, or a list of integers: all columns of a call are the one or the other."""


class Columns(NamedTuple):
    """The batches of a call in order of commit (by partition, then as they came), and how they group."""

    batch: Any
    """A StagedBatch of columns."""
    file: Values
    """By batch, as `place`: its place in the file, from 0."""
    place: Values
    file_bytes: Values
    part: Values
    """By batch, as `run` and `before`: the records before it in its partition."""
    run: Values
    before: Values
    part_key: Values
    part_leader_epoch: Values
    part_count: Values
    parts_agree: bool
    run_first: Values
    run_last: Values
    run_time: Values
    part_records: Values
    """By partition, as `part_extents` (its runs), `part_bytes` of these, and `part_time`: the highest timestamp."""
    part_extents: Values
    part_bytes: Values
    part_time: Values
    prod: Values
    """By batch."""
    prod_id: Values
    prod_first: Values
    prod_last: Values
    prod_chained: Values
    recent: Values
    """The newest batches of each producer, by producer, then in order: those that its ring will hold."""
    prod_recent: Values
    """By producer: how many of `recent` are up to its last one."""
    ring: bytes
    """Of each of `recent` the first and last sequence (int4) and the timestamp (int8): lay_out.sql."""

    def places(self, number: int) -> list[int]:
        """The places of file `number`'s batches, in order of commit."""
        return [place for file, place in zip(self.file, self.place, strict=True) if file == number + 1]

    def run_count(self, number: int) -> int:
        """Return how many runs file `number` has."""
        if isinstance(self.file, np.ndarray):
            return int(np.count_nonzero(self.file[self.run_first - 1] == number + 1))
        return sum([self.file[first - 1] == number + 1 for first in self.run_first])

    def offsets(self, number: int, bases: bytes) -> list[int]:
        """The base offsets of file `number`'s batches, in file order.

        `bases`: those of its runs, in order of commit, as int8.
        """
        if isinstance(self.file, np.ndarray):
            rows = np.flatnonzero(self.file == number + 1)
            opens = ~_same_as_before(self.run[rows])
            run = np.cumsum(opens) - 1
            shifts = np.frombuffer(bases, dtype=">i8") - self.before[rows[opens]]
            found = np.empty(len(rows), dtype=np.int64)
            found[self.place[rows]] = shifts[run] + self.before[rows]
            return found.tolist()
        of_runs = iter(struct.unpack(f">{len(bases) // 8}q", bases))
        last_run = shift = 0
        by_place: dict[int, int] = {}
        for row, file in enumerate(self.file):
            if file == number + 1:
                if self.run[row] != last_run:
                    last_run, shift = self.run[row], next(of_runs) - self.before[row]
                by_place[self.place[row]] = shift + self.before[row]
        return [by_place[place] for place in range(len(by_place))]


def group_many(files: Sequence[FileCommit], file: Column, table: Column) -> Columns:
    """Group the batches of any call, the rows of `table`; `file`: each one's file, from 0."""
    order = np.argsort(table[:, 0], kind="stable")
    sizes = [len(commit.batches) for commit in files]
    file, place = file[order], order - np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)[order]
    batch: Any = StagedBatch(*table[order].T)
    same_part = _same_as_before(batch.partition_key)
    part, part_first = np.cumsum(~same_part), np.flatnonzero(~same_part)
    before = np.cumsum(batch.record_count) - batch.record_count
    end = batch.position + batch.length
    joined = same_part & _same_as_before(file) & (batch.position == _before(end))
    run_first = np.flatnonzero(~joined)
    part_key, leader_epoch, count = batch.partition_key[part_first], batch.leader_epoch, batch.partition_count
    part_leader_epoch, part_count = leader_epoch[part_first], count[part_first]
    agree = (leader_epoch == part_leader_epoch[part - 1]) & (count == part_count[part - 1])
    if (aliases := _aliases(batch)).size:  # they have no batches here, but the states of producers
        nothing = np.full(len(aliases), -1)
        part_key = np.append(part_key, aliases)
        part_leader_epoch, part_count = np.append(part_leader_epoch, nothing), np.append(part_count, nothing)
    return Columns(
        batch=batch._replace(
            transaction=_unless_all(BatchTransaction.NO_TRANSACTION, batch.transaction),
            keys=_unless_all(MovedKeys.UNKNOWN, batch.keys),
            alias=_unless_all(NO_ALIAS, batch.alias),
        ),
        file=file + 1,
        place=place,
        file_bytes=np.bincount(file, batch.length, len(files)),
        part=part,
        run=np.cumsum(~joined),
        before=before - before[part_first][part - 1],
        part_key=part_key,
        part_leader_epoch=part_leader_epoch,
        part_count=part_count,
        parts_agree=bool(agree.all()),
        run_first=run_first + 1,
        run_last=_lasts(run_first, len(file)) + 1,
        run_time=_reduce(np.maximum, batch.max_timestamp, run_first),
        **_sum_partitions(batch, part_first, ~joined, len(part_key)),
        **_group_producers(batch, part),
    )


def _sum_partitions(batch: Any, part_first: Column, opens_run: Column, parts: int) -> dict[str, Any]:
    """Sum the batches of each partition, of which the first begins at `part_first`; 0 for those without batches."""
    nothing = np.zeros(parts - len(part_first), dtype=np.int64)

    def each(function: np.ufunc, column: Column) -> Column:
        return np.append(_reduce(function, column, part_first), nothing)

    return {
        "part_records": each(np.add, batch.record_count),
        "part_extents": each(np.add, opens_run.astype(np.int64)),
        "part_bytes": each(np.add, batch.length),
        "part_time": each(np.maximum, batch.max_timestamp),
    }


def _aliases(batch: Any) -> Column:
    """The keys of the aliases that batches came for, ascending."""
    via = np.flatnonzero(batch.alias != NO_ALIAS)
    return np.unique((batch.partition_key[via] >> PARTITION_BITS << PARTITION_BITS) + batch.alias[via])


def _group_producers(batch: Any, part: Column) -> dict[str, Any]:
    """The distinct (partition, alias, producer id), and each batch's; 0 without a producer id."""
    idempotent = np.flatnonzero(batch.producer_id >= 0)
    keys = batch.producer_id[idempotent], batch.alias[idempotent], part[idempotent]
    order = np.lexsort(keys)
    rows = idempotent[order]
    opens = ~np.logical_and.reduce([_same_as_before(key[order]) for key in keys])
    first = np.flatnonzero(opens)
    last = _lasts(first, len(rows))
    prod = np.cumsum(opens)
    batch_prod = np.zeros(len(part), dtype=np.int64)
    batch_prod[rows] = prod
    sequence = batch.base_sequence[rows]
    next_sequence = (sequence + batch.record_count[rows]) & SEQUENCE_MAX
    continues = _same_as_before(batch.producer_epoch[rows]) & (sequence == _before(next_sequence))
    recent = rows[last[prod - 1] - np.arange(len(rows)) < RING_BATCHES]
    ring = np.empty(len(recent), dtype=_RING_LAYOUT)
    ring["first"] = batch.base_sequence[recent]
    ring["last"] = (batch.base_sequence[recent] + batch.record_count[recent] - 1) & SEQUENCE_MAX
    ring["time"] = batch.max_timestamp[recent]
    return {
        "prod": batch_prod,
        "prod_id": batch.producer_id[rows[first]],
        "prod_first": rows[first] + 1,
        "prod_last": rows[last] + 1,
        "prod_chained": _reduce(np.logical_and, opens | continues, first),
        "recent": recent + 1,
        "prod_recent": np.cumsum(np.minimum(last - first + 1, RING_BATCHES)),
        "ring": ring.tobytes(),
    }


def group_few(files: Sequence[FileCommit]) -> Columns:
    """Group the batches of a call without transactions, aliases and known keys, as group_many does."""
    rows = [(batch, number, place) for number, file in enumerate(files, 1) for place, batch in enumerate(file.batches)]
    rows.sort(key=lambda row: row[0].partition_key)
    batches, file_of, place_of = map(list, zip(*rows, strict=True))
    file_bytes = [0] * len(files)
    part_of, run_of, before_of = [], [], []
    part_key, part_leader_epoch, part_count = list[int](), list[int](), list[int]()
    part_records, part_extents, part_bytes, part_time = list[int](), list[int](), list[int](), list[int]()
    run_first, run_last, run_time = list[int](), list[int](), list[int]()
    parts_agree = True
    end = last_file = 0
    for row, (batch, file, _) in enumerate(rows, 1):
        opens_part = not part_key or batch.partition_key != part_key[-1]
        if opens_part:
            part_key.append(batch.partition_key)
            part_leader_epoch.append(batch.leader_epoch)
            part_count.append(batch.partition_count)
            part_records.append(0)
            part_extents.append(0)
            part_bytes.append(0)
            part_time.append(batch.max_timestamp)
        if opens_part or file != last_file or batch.position != end:
            part_extents[-1] += 1
            run_first.append(row)
            run_last.append(row)
            run_time.append(batch.max_timestamp)
        part_of.append(len(part_key))
        run_of.append(len(run_first))
        before_of.append(part_records[-1])
        part_records[-1] += batch.record_count
        part_bytes[-1] += batch.length
        part_time[-1] = max(part_time[-1], batch.max_timestamp)
        parts_agree &= batch.leader_epoch == part_leader_epoch[-1] and batch.partition_count == part_count[-1]
        run_last[-1] = row
        run_time[-1] = max(run_time[-1], batch.max_timestamp)
        file_bytes[file - 1] += batch.length
        end, last_file = batch.position + batch.length, file
    columns: Any = StagedBatch._make(map(list, zip(*batches, strict=True)))
    return Columns(
        batch=columns._replace(transaction=(), keys=(), alias=()),
        file=file_of,
        place=place_of,
        file_bytes=file_bytes,
        part=part_of,
        run=run_of,
        before=before_of,
        part_key=part_key,
        part_leader_epoch=part_leader_epoch,
        part_count=part_count,
        parts_agree=parts_agree,
        run_first=run_first,
        run_last=run_last,
        run_time=run_time,
        part_records=part_records,
        part_extents=part_extents,
        part_bytes=part_bytes,
        part_time=part_time,
        **_group_few_producers(batches, part_of),
    )


def _group_few_producers(batches: Sequence[StagedBatch], part_of: Sequence[int]) -> dict[str, Any]:
    """Group the batches by (partition, producer id), as _group_producers does."""
    rows_of: dict[tuple[int, int], list[int]] = {}
    for row, (batch, part) in enumerate(zip(batches, part_of, strict=True), 1):
        if batch.producer_id >= 0:
            rows_of.setdefault((part, batch.producer_id), []).append(row)
    prod_of = [0] * len(batches)
    prod_id, prod_first, prod_last = list[int](), list[int](), list[int]()
    prod_chained, recent, prod_recent = list[bool](), list[int](), list[int]()
    for number, ((_, producer_id), rows) in enumerate(sorted(rows_of.items()), 1):
        for row in rows:
            prod_of[row - 1] = number
        prod_id.append(producer_id)
        prod_first.append(rows[0])
        prod_last.append(rows[-1])
        prod_chained.append(_are_chained([batches[row - 1] for row in rows]))
        recent += rows[-RING_BATCHES:]
        prod_recent.append(len(recent))
    return {
        "prod": prod_of,
        "prod_id": prod_id,
        "prod_first": prod_first,
        "prod_last": prod_last,
        "prod_chained": prod_chained,
        "recent": recent,
        "prod_recent": prod_recent,
        "ring": b"".join([_ring_bytes(batches[row - 1]) for row in recent]),
    }


def _ring_bytes(batch: StagedBatch) -> bytes:
    last = (batch.base_sequence + batch.record_count - 1) & SEQUENCE_MAX
    return _RING.pack(batch.base_sequence, last, batch.max_timestamp)


def _are_chained(batches: Sequence[StagedBatch]) -> bool:
    """Return whether each batch continues the one before it in one epoch."""
    return all(
        later.producer_epoch == batch.producer_epoch
        and later.base_sequence == (batch.base_sequence + batch.record_count) & SEQUENCE_MAX
        for batch, later in pairwise(batches)
    )


def _unless_all(value: int, column: Column) -> Column:
    """The column; empty if all of it is `value`."""
    return column if (column != value).any() else column[:0]


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
