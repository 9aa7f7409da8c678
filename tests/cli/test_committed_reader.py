"""Reading committed records: gaps, throttles, failures and a log start that moves, with answers that a test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.cli.client import committed
from headrace.cli.client.committed import EMPTY_MAX, TRIES, CommittedReader, LogStartMovedError
from headrace.cli.client.records import FetchedBatches
from headrace.storage.errors import CorruptError, InvalidError, UnavailableError
from headrace.storage.records.codec import Record, empty_batch, encode_batch, encode_control_batch
from headrace.storage.records.header import HEADER, TRANSACTIONAL_BIT, batch_crc, read_header

PLACE = ("orders", 0)
NOTHING = FetchedBatches(0, memoryview(b""), [])
Answers = list[FetchedBatches | Exception]


def _batch(first: int, last: int, **more: Any) -> bytes:
    return encode_batch([Record(n, 1, b"k", b"%d" % n) for n in range(first, last + 1)], base_offset=first, **more)


def _answer(*batches: bytes, aborted: tuple[tuple[int, int], ...] = (), throttle_s: float = 0.0) -> FetchedBatches:
    return FetchedBatches(0, memoryview(b"".join(batches)), list(aborted), throttle_s)


class FakeCluster:
    """Is connected, and counts how often."""

    def __init__(self, reader: FakeReader) -> None:
        self._reader = reader

    def __enter__(self) -> FakeCluster:
        self._reader.connections += 1
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nodes(self) -> list[int]:
        return [0]

    def pause(self, seconds: float) -> None:
        self._reader.pauses.append(seconds)


class FakeReader:
    """Reads the answers, one for each fetch; the last one again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Answers, starts: dict[str, int]) -> None:
        self.connections, self.pauses, self.positions = 0, list[float](), list[int]()
        self._answers, self.starts = answers, starts
        monkeypatch.setattr(committed, "fetch_batches", self._fetch)
        monkeypatch.setattr(committed, "partitions_of", lambda cluster, topics: {PLACE: 0})
        monkeypatch.setattr(committed, "list_offsets", lambda cluster, at, isolation=0: {PLACE: starts["orders"]})

    def _fetch(self, cluster: object, leader: int, topic: str, positions: dict[int, int], *_: int) -> Iterator[Any]:
        self.positions.append(positions[0])
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield answer

    def read(self, start: int, end: int) -> tuple[list[int], int]:
        """Return the offsets that were read, and where reading ended."""
        offsets = list[int]()
        with CommittedReader(lambda: FakeCluster(self)) as reader:  # type: ignore[arg-type, return-value]
            records = reader.records(PLACE, start, end)
            while True:
                try:
                    offsets += map(int, next(records).offsets)
                except StopIteration as ended:
                    return offsets, ended.value


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeReader]:
    """Makes a reader of these answers."""
    return lambda *answers, start=0: FakeReader(monkeypatch, list(answers), {"orders": start})


def test_only_what_is_asked_for_is_read_across_gaps(made: Callable[..., FakeReader]) -> None:
    reader = made(_answer(_batch(0, 4), empty_batch(5, 9, 0)), _answer(_batch(12, 15)), _answer(_batch(16, 30)))
    assert reader.read(2, 18) == ([2, 3, 4, 12, 13, 14, 15, 16, 17], 18)
    assert reader.positions == [2, 10, 16]


def test_aborted_records_and_markers_are_left_out(made: Callable[..., FakeReader]) -> None:
    of_producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    transactional = bytearray(_batch(0, 1, **of_producer))
    marker = encode_control_batch(Record(2, 1, b"\0\0\0\0", b"\0" * 6), producer_id=7, producer_epoch=0, leader_epoch=0)
    reader = made(_answer(_as_transactional(transactional), marker, _batch(3, 4), aborted=((7, 0),)))
    assert reader.read(0, 5) == ([3, 4], 5)


def _as_transactional(batch: bytearray) -> bytes:
    header = read_header(bytes(batch))
    HEADER.pack_into(batch, 0, *header._replace(attributes=header.attributes | TRANSACTIONAL_BIT))
    header = read_header(bytes(batch))
    HEADER.pack_into(batch, 0, *header._replace(crc=batch_crc(memoryview(batch))))
    return bytes(batch)


def test_an_end_without_records_does_not_hang(made: Callable[..., FakeReader]) -> None:
    reader = made(_answer(_batch(0, 4)), NOTHING)
    assert reader.read(0, 1_000) == ([0, 1, 2, 3, 4], 5)
    assert len(reader.positions) == 1 + EMPTY_MAX


def test_a_throttled_answer_proves_nothing(made: Callable[..., FakeReader]) -> None:
    throttled = [_answer(throttle_s=2.0)] * (EMPTY_MAX + 5)
    reader = made(*throttled, _answer(_batch(0, 4)))
    assert reader.read(0, 5) == ([0, 1, 2, 3, 4], 5)
    assert reader.pauses == [2.0] * len(throttled)


def test_a_lost_broker_is_asked_again_by_a_new_connection(made: Callable[..., FakeReader]) -> None:
    reader = made(_answer(_batch(0, 1)), UnavailableError("gone"), UnavailableError("gone"), _answer(_batch(2, 4)))
    assert reader.read(0, 5) == ([0, 1, 2, 3, 4], 5)
    assert (reader.connections, reader.positions) == (3, [0, 2, 2, 2])
    lost = made(UnavailableError("gone"))
    with pytest.raises(UnavailableError, match="gone"):
        lost.read(0, 5)
    assert len(lost.positions) == TRIES


def test_a_log_start_that_moved_is_no_other_refusal(made: Callable[..., FakeReader]) -> None:
    with pytest.raises(LogStartMovedError, match="orders:0 begins at 3 now, behind 0"):
        made(InvalidError("refused: offset_out_of_range"), start=3).read(0, 5)
    with pytest.raises(InvalidError, match="authorization"):
        made(InvalidError("refused: topic_authorization_failed")).read(0, 5)


@pytest.mark.parametrize("answer", [ValueError("two parts"), KeyError("orders")])
def test_an_answer_that_cannot_be_is_an_error(made: Callable[..., FakeReader], answer: Exception) -> None:
    with pytest.raises(CorruptError, match="the answer cannot be used"):
        made(answer).read(0, 5)
