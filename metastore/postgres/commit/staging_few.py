"""The columns of a commit call with few batches, laid out by plain loops.

Place: in front of staging.py, which does the same for any call. For a file of five batches numpy's hundred calls cost
two to four times as much as these loops.
Invariant: says exactly what Staged says, byte by byte (tests/metastore/test_staging.py compares them on random
calls). It takes only what is plain and right: other calls are Staged's, which refuses what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, BatchTransaction, FileCommit, StagedBatch
from headrace.metastore.postgres.commit.staging import (
    DIFFERENT,
    INT2_MAX,
    INT4_MAX,
    INT8_MAX,
    RECORDS_MAX,
    RING_BATCHES,
    Staged,
    check_count,
)
from headrace.metastore.postgres.packing import (
    PackedArray,
    pack_few_bools,
    pack_few_int2,
    pack_few_int4,
    pack_few_int8,
    pack_uuids,
    unpack_answers,
)
from headrace.storage.file_id import born_ms

BATCHES_MAX = 32


def stage(files: Sequence[FileCommit]) -> Staged | FewStaged:
    """The files' batches in order of commit; InvalidError for input that cannot be right."""
    if sum(len(file.batches) for file in files) > BATCHES_MAX or not _all_plain(files):
        return Staged(files)
    return FewStaged(files)


class FewStaged:
    """Columns of at most BATCHES_MAX batches, none of them transactional or for an alias; rows as in Staged,
    numbered from 1.
    """

    def __init__(self, files: Sequence[FileCommit]) -> None:
        self.files = files
        rows = [(batch, number, place) for number, file in enumerate(files) for place, batch in enumerate(file.batches)]
        rows.sort(key=lambda row: row[0].partition_key)
        self._batches = [batch for batch, _, _ in rows]
        self._file = [number for _, number, _ in rows]
        self._place = [place for _, _, place in rows]
        self._place_neighbours()

    def _place_neighbours(self) -> None:
        """Place each batch: its partition, its run, and the records before it in its partition."""
        self._part: list[int] = []
        self._run: list[int] = []
        self._before: list[int] = []
        part = run = before = end = 0
        key = file = -1
        for batch, number in zip(self._batches, self._file, strict=True):
            is_next = batch.partition_key == key
            if not is_next:
                part, before, key = part + 1, 0, batch.partition_key
            if not is_next or number != file or batch.position != end:
                run += 1
            self._part.append(part)
            self._run.append(run)
            self._before.append(before)
            before += batch.record_count
            end, file = batch.position + batch.length, number

    def parameters(self) -> dict[str, PackedArray]:
        """Return what commit_files.sql takes."""
        batches = self._batches
        file_bytes = [0] * len(self.files)
        for batch, number in zip(batches, self._file, strict=True):
            file_bytes[number] += batch.length
        runs = _groups(self._run)
        return {
            "file_id": pack_uuids([file.file_id for file in self.files]),
            "file_born_ms": pack_few_int8([born_ms(file.file_id) for file in self.files]),
            "file_size": pack_few_int8([file.size for file in self.files]),
            "file_bytes": pack_few_int8(file_bytes),
            **self._partitions(),
            "batch_file": pack_few_int4([number + 1 for number in self._file]),
            "batch_part": pack_few_int4(self._part),
            "batch_position": pack_few_int8([batch.position for batch in batches]),
            "batch_length": pack_few_int4([batch.length for batch in batches]),
            "batch_records": pack_few_int4([batch.record_count for batch in batches]),
            "batch_time": pack_few_int8([batch.max_timestamp for batch in batches]),
            "batch_epoch": pack_few_int2([batch.producer_epoch for batch in batches]),
            "batch_sequence": pack_few_int4([batch.base_sequence for batch in batches]),
            "batch_leader_epoch": pack_few_int4([batch.leader_epoch for batch in batches]),
            "batch_count": pack_few_int4([batch.partition_count for batch in batches]),
            "batch_before": pack_few_int8(self._before),
            "batch_run": pack_few_int4(self._run),
            "run_first": pack_few_int4([rows[0] for rows in runs]),
            "run_last": pack_few_int4([rows[-1] for rows in runs]),
            "run_time": pack_few_int8([max(batches[row - 1].max_timestamp for row in rows) for rows in runs]),
            **self._producers(),
        }

    def _partitions(self) -> dict[str, PackedArray]:
        parts = [[self._batches[row - 1] for row in rows] for rows in _groups(self._part)]
        return {
            "part_key": pack_few_int8([batches[0].partition_key for batches in parts]),
            "part_leader_epoch": pack_few_int4([_shared(batch.leader_epoch for batch in batches) for batches in parts]),
            "part_count": pack_few_int4([_shared(batch.partition_count for batch in batches) for batches in parts]),
        }

    def _producers(self) -> dict[str, PackedArray]:
        found: dict[tuple[int, int], list[int]] = {}
        for row, (batch, part) in enumerate(zip(self._batches, self._part, strict=True), start=1):
            if batch.producer_id >= 0:
                found.setdefault((part, batch.producer_id), []).append(row)
        producers = sorted(found.items())
        batch_prod = [0] * len(self._batches)
        for number, (_, rows) in enumerate(producers, start=1):
            for row in rows:
                batch_prod[row - 1] = number
        return {
            "batch_prod": pack_few_int4(batch_prod),
            "prod_id": pack_few_int8([producer_id for (_, producer_id), _ in producers]),
            "prod_first": pack_few_int4([rows[0] for _, rows in producers]),
            "prod_last": pack_few_int4([rows[-1] for _, rows in producers]),
            "prod_chained": pack_few_bools([self._is_chained(rows) for _, rows in producers]),
            "recent": pack_few_int4([row for _, rows in producers for row in rows[-RING_BATCHES:]]),
        }

    def _is_chained(self, rows: Sequence[int]) -> bool:
        """Return whether each batch continues the one before it in one epoch."""
        batches = [self._batches[row - 1] for row in rows]
        return all(
            later.producer_epoch == batch.producer_epoch
            and later.base_sequence == (batch.base_sequence + batch.record_count) & INT4_MAX
            for batch, later in pairwise(batches)
        )

    def answers(self, number: int, packed: bytes) -> list[BatchAnswer]:
        """Return the answers as Staged.answers does."""
        rows = [row for row, file in enumerate(self._file) if file == number]
        file = self.files[number]
        found: dict[int, BatchAnswer] = {}
        if packed[0] == 1:
            answers = unpack_answers(packed[1:])
            check_count(file.file_id, len(answers), len(rows))
            found = {self._place[row]: answer for row, answer in zip(rows, answers, strict=True)}
        else:
            runs = [list(run) for _, run in groupby(rows, key=self._run.__getitem__)]
            check_count(file.file_id, (len(packed) - 1) // 8, len(runs))
            for base, run in zip(struct.unpack_from(f">{len(runs)}q", packed, 1), runs, strict=True):
                for row in run:
                    offset = base + self._before[row] - self._before[run[0]]
                    time = self._batches[row].max_timestamp
                    found[self._place[row]] = BatchAnswer(BatchOutcome.APPENDED, offset, time)
        return [found[place] for place in range(len(rows))]


def _all_plain(files: Sequence[FileCommit]) -> bool:
    """Return whether every number is in its range, and no file id, alias, moved key or transaction needs a closer
    look.
    """
    return len({file.file_id for file in files}) == len(files) and all(
        _is_plain(batch, file.size) for file in files for batch in file.batches
    )


def _is_plain(batch: StagedBatch, file_size: int) -> bool:
    lowest = 0 if batch.producer_id >= 0 else -1
    return (
        0 <= batch.partition_key <= INT8_MAX
        and batch.position >= 0
        and 1 <= batch.length <= min(INT4_MAX, file_size - batch.position)
        and file_size <= INT8_MAX
        and 1 <= batch.record_count <= RECORDS_MAX
        and ~INT8_MAX <= batch.max_timestamp <= INT8_MAX
        and ~INT8_MAX <= batch.producer_id <= INT8_MAX
        and lowest <= batch.producer_epoch <= INT2_MAX
        and lowest <= batch.base_sequence <= INT4_MAX
        and -1 <= batch.leader_epoch <= INT4_MAX
        and -1 <= batch.partition_count <= INT4_MAX
        and batch.transaction == BatchTransaction.NO_TRANSACTION
    )


def _groups(numbers: Sequence[int]) -> list[list[int]]:
    """Rows, numbered from 1, by the number that neighbours share."""
    return [list(rows) for _, rows in groupby(range(1, len(numbers) + 1), key=lambda row: numbers[row - 1])]


def _shared(values: Iterable[int]) -> int:
    """The value that all have, or DIFFERENT."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else DIFFERENT
