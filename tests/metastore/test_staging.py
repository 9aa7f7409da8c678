"""Columns of a commit call: the loops for few batches group them as numpy does, and take nothing else."""

from __future__ import annotations

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metastore.api.commit import BatchOutcome, BatchTransaction, FileCommit, MovedKeys, StagedBatch
from headrace.metastore.keys import partition_key
from headrace.metastore.postgres.commit import commit, grouping
from headrace.metastore.postgres.commit.commit import Staged
from headrace.metastore.postgres.commit.grouping import FEW_BATCHES
from headrace.storage.errors import InvalidError

SIZE = 1_000
ANSWER = struct.Struct(">hqq")


@st.composite
def _calls(draw: st.DrawFn) -> list[FileCommit]:
    """Few partitions and producers, so that runs, chains and gaps of each kind come up."""
    files, left = [], FEW_BATCHES
    for number in range(draw(st.integers(1, 3))):
        batches, position = [], 0
        for _ in range(draw(st.integers(0 if number else 1, min(left, 8)))):
            position += draw(st.sampled_from([0, 0, 0, 7]))
            producer_id = draw(st.sampled_from([-1, 4, 4, 9]))
            sequence = draw(st.sampled_from([0, 1, 2, (1 << 31) - 1])) if producer_id >= 0 else -1
            batches.append(
                StagedBatch(
                    partition_key(draw(st.sampled_from([1, 1, 2])), draw(st.integers(0, 1))),
                    position,
                    length=10,
                    record_count=draw(st.integers(1, 2)),
                    max_timestamp=draw(st.sampled_from([-1, 0, 5, (1 << 63) - 1])),
                    producer_id=producer_id,
                    producer_epoch=draw(st.integers(0, 1)) if producer_id >= 0 else -1,
                    base_sequence=sequence,
                    leader_epoch=draw(st.sampled_from([-1, 0, 0, 3])),
                    partition_count=draw(st.sampled_from([-1, -1, 4])),
                )
            )
            position += 10
        left -= len(batches)
        files.append(FileCommit(uuid.UUID(int=number + 1), SIZE, batches))
    return files


def _with_numpy(files: list[FileCommit]) -> Staged:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "FEW_BATCHES", 0)
        return Staged(files)


def _is_of_lists(staged: Staged) -> bool:
    return isinstance(staged._columns.file, list)


@pytest.mark.requirement("W4")
@given(files=_calls(), bases=st.lists(st.integers(0, 1 << 40), min_size=FEW_BATCHES, max_size=FEW_BATCHES))
def test_the_loops_for_few_batches_say_what_numpy_says(files: list[FileCommit], bases: list[int]) -> None:
    few, general = Staged(files), _with_numpy(files)
    assert _is_of_lists(few)
    assert not _is_of_lists(general)
    assert few.parameters() == general.parameters()
    for number, file in enumerate(files):
        judged = b"\x01" + b"".join(
            ANSWER.pack(BatchOutcome.APPENDED, base, base + 1) for base in bases[: len(file.batches)]
        )
        assert few.answers(number, judged) == general.answers(number, judged)
        for count in range(len(file.batches) + 1):
            packed = b"\x00" + struct.pack(f">{count}q", *bases[:count])
            assert _answers(few, number, packed) == _answers(general, number, packed)


def _answers(staged: Staged, number: int, packed: bytes) -> object:
    try:
        return staged.answers(number, packed)
    except InvalidError as error:
        return str(error)


PLAIN = StagedBatch(partition_key(1, 0), 0, 10, 1, 5, 4, 0, 0, leader_epoch=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"partition_key": -1},
        {"position": -1},
        {"length": 0},
        {"length": SIZE + 1},
        {"position": SIZE - 9},
        {"record_count": 0},
        {"record_count": (1 << 28) + 1},
        {"max_timestamp": 1 << 63},
        {"producer_epoch": -1},
        {"producer_epoch": 1 << 15},
        {"base_sequence": -1},
        {"base_sequence": 1 << 31},
        {"leader_epoch": -2},
        {"leader_epoch": 1 << 31},
        {"partition_count": -2},
        {"keys": -1},
        {"keys": max(MovedKeys) + 1},
        {"keys": MovedKeys.STAY, "partition_count": 4},
        {"alias": -2},
        {"alias": 1 << 24},
        {"alias": 1, "partition_count": 4},
        {"transaction": -1},
        {"transaction": max(BatchTransaction) + 1},
        {"transaction": BatchTransaction.ADDED, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1},
        {"transaction": BatchTransaction.ADDED, "producer_epoch": (1 << 15) - 1},
    ],
)
def test_what_cannot_be_right_is_refused_with_few_batches_too(changes: dict[str, int]) -> None:
    with pytest.raises(InvalidError):
        Staged([FileCommit(uuid.UUID(int=1), SIZE, [PLAIN._replace(**changes)])])


@pytest.mark.parametrize(
    "changes",
    [
        {"alias": 0},
        {"keys": int(MovedKeys.MOVED)},
        {"transaction": BatchTransaction.ANY_PARTITION},
    ],
)
def test_a_call_that_needs_a_closer_look_is_grouped_with_numpy(changes: dict[str, int]) -> None:
    assert not _is_of_lists(Staged([FileCommit(uuid.UUID(int=1), SIZE, [PLAIN._replace(**changes)])]))


def test_a_file_id_that_is_named_twice_is_refused() -> None:
    with pytest.raises(InvalidError, match="named twice"):
        Staged([FileCommit(uuid.UUID(int=1), SIZE, [PLAIN])] * 2)


def test_a_call_of_many_batches_is_grouped_with_numpy() -> None:
    batches = [PLAIN._replace(base_sequence=number) for number in range(FEW_BATCHES + 1)]
    assert _is_of_lists(Staged([FileCommit(uuid.UUID(int=1), SIZE, batches[:-1])]))
    assert not _is_of_lists(Staged([FileCommit(uuid.UUID(int=1), SIZE, batches)]))


def test_a_call_without_batches_is_grouped_with_numpy() -> None:
    staged = Staged([FileCommit(uuid.UUID(int=1), SIZE, [])])
    assert not _is_of_lists(staged)
    assert staged.answers(0, b"\x00") == []


def test_a_form_that_forgets_a_sixth_batch_of_a_producer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [PLAIN._replace(base_sequence=number) for number in range(6)]
    files = [FileCommit(uuid.UUID(int=1), SIZE, batches)]
    general = _with_numpy(files).parameters()
    monkeypatch.setattr(grouping, "RING_BATCHES", 4)
    assert Staged(files).parameters() != general
