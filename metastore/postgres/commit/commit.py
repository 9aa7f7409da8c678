"""Commit: one round trip that orders stored files' batches (commit_files.sql).

Place: between the stored file and the acknowledgement; implements CommitApi without bulk writes. The batches of a
call become columns before the round trip, laid out for the case that every one of them is accepted. `headrace
storage grow-commit-shards` changes the count of commit shards.
Invariant of the columns: says nothing that the batches alone do not tell: which partitions and producers there are,
which batches are neighbours in bytes or in sequence, how many records come before each. Whether they are accepted is
Postgres' to judge; but it need not sort and group what is grouped here, where processors are plenty. Rows are
numbered from 1 on the other side; 0 is none.
Invariant of the call: a call can be repeated unchanged: a file id is judged once and always gets the same answer.
Invariant of the count of shards: the count in Postgres and the level of the feature in the metadata log change in
one statement.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import chain, repeat
from operator import itemgetter, le
from typing import Any

import numpy as np

from headrace.metastore.api.agents import COMMIT_SHARDS
from headrace.metastore.api.commit import (
    NO_ALIAS,
    BatchAnswer,
    BatchOutcome,
    BatchTransaction,
    FileAnswer,
    FileCommit,
    FileStatus,
    MovedKeys,
    StagedBatch,
)
from headrace.metastore.api.transactions import EPOCH_MAX
from headrace.metastore.keys import PARTITION_BITS
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.postgres.commit.grouping import FEW_BATCHES, Columns, group_few, group_many
from headrace.metastore.postgres.packing import (
    Column,
    PackedArray,
    pack_bodies,
    pack_bools,
    pack_int2,
    pack_int4,
    pack_int8,
    pack_uuids,
    unpack_answers,
)
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import born_ms, is_inline

RECORDS_MAX = 1 << 28
"""Records of one batch. Six such batches do not wrap around the sequence numbers."""
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
    partition_count=-1,
    transaction=BatchTransaction.NO_TRANSACTION,
    keys=MovedKeys.UNKNOWN,
    alias=NO_ALIAS,
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
    keys=max(MovedKeys),
    alias=(1 << PARTITION_BITS) - 1,
)
_HIGHEST_PLAIN = tuple(map(int, _HIGHEST._replace(transaction=_LOWEST.transaction, keys=_LOWEST.keys, alias=NO_ALIAS)))
_LOWEST_ROWS = np.array([_LOWEST, _LOWEST_OF_IDEMPOTENT], dtype=np.int64)
_HIGHEST_ROW = np.array(_HIGHEST, dtype=np.int64)


class Staged:
    """The batches of `files`, laid out.

    InvalidError for input that cannot be right: a number out of range, a batch outside its file, a
    file id twice.
    """

    def __init__(self, files: Sequence[FileCommit]) -> None:
        self.files = files
        if len({file.file_id for file in files}) != len(files):
            raise InvalidError("commit refused: a file id is named twice in one call")
        for file in files:
            if is_inline(file.file_id) != (file.body is not None) or (
                file.body is not None and len(file.body) != file.size
            ):
                raise InvalidError(f"commit refused: the id of a file says where its bytes are: file_id={file.file_id}")
        self._columns = group_few(files) if _are_few(files) else _checked(files)

    def parameters(self) -> dict[str, PackedArray | bytes | bool]:
        """Return what commit_files.sql takes."""
        c = self._columns
        file_ids = [file.file_id for file in self.files]
        return {
            "file_id": pack_uuids(file_ids),
            "file_born_ms": pack_int8(list(map(born_ms, file_ids))),
            "file_size": pack_int8([file.size for file in self.files]),
            "file_bytes": pack_int8(c.file_bytes),
            "part_key": pack_int8(c.part_key),
            "part_leader_epoch": pack_int4(c.part_leader_epoch),
            "part_count": pack_int4(c.part_count),
            "parts_agree": c.parts_agree,
            "batch_file": pack_int4(c.file),
            "batch_part": pack_int4(c.part),
            "batch_prod": pack_int4(c.prod),
            "batch_position": pack_int8(c.batch.position),
            "batch_length": pack_int4(c.batch.length),
            "batch_records": pack_int4(c.batch.record_count),
            "batch_time": pack_int8(c.batch.max_timestamp),
            "batch_epoch": pack_int2(c.batch.producer_epoch),
            "batch_sequence": pack_int4(c.batch.base_sequence),
            "batch_leader_epoch": pack_int4(c.batch.leader_epoch),
            "batch_count": pack_int4(c.batch.partition_count),
            "batch_transaction": pack_int4(c.batch.transaction),
            "batch_keys": pack_int4(c.batch.keys),
            "batch_alias": pack_int4(c.batch.alias),
            "batch_before": pack_int8(c.before),
            "batch_run": pack_int4(c.run),
            "run_first": pack_int4(c.run_first),
            "run_last": pack_int4(c.run_last),
            "run_time": pack_int8(c.run_time),
            "part_records": pack_int8(c.part_records),
            "part_extents": pack_int4(c.part_extents),
            "part_bytes": pack_int8(c.part_bytes),
            "part_time": pack_int8(c.part_time),
            "prod_id": pack_int8(c.prod_id),
            "prod_first": pack_int4(c.prod_first),
            "prod_last": pack_int4(c.prod_last),
            "prod_chained": pack_bools(c.prod_chained),
            "recent": pack_int4(c.recent),
            "prod_recent": pack_int4(c.prod_recent),
            "ring": c.ring,
        }

    def bodies(self) -> PackedArray | None:
        """Return the bytes by file of a call with inline files; None if there are none."""
        bodies = [file.body for file in self.files]
        return None if bodies.count(None) == len(bodies) else pack_bodies(bodies)

    def answers(self, number: int, packed: bytes) -> list[BatchAnswer]:
        """Return what a stored answer (packing.sql) says of file `number`, its batches in file order.

        InvalidError when it was given to other batches than these.
        """
        file, columns = self.files[number], self._columns
        if packed[0] == 1:
            places, answers = columns.places(number), unpack_answers(packed[1:])
            _check_count(file.file_id, len(answers), len(places))
            return [answer for _, answer in sorted(zip(places, answers, strict=True), key=itemgetter(0))]
        _check_count(file.file_id, (len(packed) - 1) // 8, columns.run_count(number))
        times = [batch.max_timestamp for batch in file.batches]
        offsets = columns.offsets(number, packed[1:])
        return list(map(BatchAnswer, repeat(BatchOutcome.APPENDED), offsets, times))


def _are_few(files: Sequence[FileCommit]) -> bool:
    """Return whether group_few takes the call: few batches, each right, without alias, transaction and known keys."""
    if not 0 < sum([len(file.batches) for file in files]) <= FEW_BATCHES:
        return False
    for file in files:
        for batch in file.batches:
            lowest = _LOWEST if batch.producer_id < 0 else _LOWEST_OF_IDEMPOTENT
            if batch.length > file.size - batch.position or file.size > INT8_MAX:
                return False
            if not (all(map(le, lowest, batch)) and all(map(le, batch, _HIGHEST_PLAIN))):
                return False
    return True


def _checked(files: Sequence[FileCommit]) -> Columns:
    table = _table(files)
    file = np.repeat(np.arange(len(files)), [len(commit.batches) for commit in files])
    _check(files, file, table)
    return group_many(files, file, table)


def _check_count(file_id: uuid.UUID, answered: int, asked: int) -> None:
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
    right &= (batch.partition_count == -1) | ((batch.keys == MovedKeys.UNKNOWN) & (batch.alias == NO_ALIAS))
    if batch.transaction.any():
        right &= (batch.transaction == 0) | ((batch.producer_id >= 0) & (batch.producer_epoch <= EPOCH_MAX))
    if not right.all():
        row = int(np.argmin(right))
        wrong = StagedBatch(*table[row].tolist())
        raise InvalidError(f"commit refused: file_id={files[file[row]].file_id} size={size[row]} {wrong}")


PRODUCER_IDS_MAX = 1_000_000
"""Most producer ids of one block."""
_COMMIT_FILES = Statement("commit_files", writes=True)
_COMMIT_INLINE_FILES = Statement("commit_inline_files", writes=True)
_ALLOCATE_PRODUCER_IDS = Statement("allocate_producer_ids", writes=True)


class PostgresCommit(PostgresNoun):
    """Implements CommitApi, but for bulk writes."""

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        """InvalidError for input that cannot be right (see Staged), or for a file id that was committed with other
        batches: then no file of the call was committed.
        """
        if not files:
            return []
        files = [FileCommit(file.file_id, file.size, list(file.batches), file.body) for file in files]
        staged, bodies = Staged(files), {}
        if (packed := staged.bodies()) is not None:
            bodies["body"] = packed
        rows = await (_COMMIT_INLINE_FILES if bodies else _COMMIT_FILES).rows(
            self.pool,
            node_id=node_id,
            broker_epoch=broker_epoch,
            producer_expiration_ms=self.settings.producer_id_expiration_ms,
            **bodies,
            **staged.parameters(),
        )
        return [
            FileAnswer(file.file_id, FileStatus(status), staged.answers(number, answer) if answer else [])
            for number, (file, (status, answer)) in enumerate(zip(files, rows, strict=True))
        ]

    async def allocate_producer_ids(self, count: int) -> range:
        """`count` from 1 to PRODUCER_IDS_MAX. If the answer is lost, the block is never used."""
        if not 1 <= count <= PRODUCER_IDS_MAX:
            raise InvalidError(f"producer ids refused: count={count}")
        (first,) = await _ALLOCATE_PRODUCER_IDS.row(self.pool, count=count)
        return range(first, first + count)


GROW_SECONDS = 120.0
"""A million partitions take some seconds."""
DESCRIBE_CLUSTER = Statement("describe_cluster", writes=False)
_GROW = Statement("grow_commit_shards", writes=True, in_any_life=True, patience_seconds=GROW_SECONDS)


class PostgresShards(PostgresNoun):
    """Implements what ClusterApi says of the shards."""

    async def count_commit_shards(self) -> int:
        shards: int = (await DESCRIBE_CLUSTER.row(self.pool))[2]
        return shards

    async def grow_commit_shards(self, shards: int, expected_head: int) -> bool:
        record = FeatureLevelRecord(name=COMMIT_SHARDS, min_feature_level=1, max_feature_level=shards)
        (done,) = await _GROW.row(
            self.pool,
            life=self.pool.life,
            expected_head=expected_head,
            shards=shards,
            feature=COMMIT_SHARDS,
            record=encode_record(record),
        )
        return bool(done)
