"""Chunks of a link: each offset once, each committed record once, none of an aborted transaction."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compactor.links import chunks
from headrace.compactor.links.chunks import Chunk, OldFormatError, TooLargeBatchError, make_chunk, tiles
from headrace.compactor.links.producers import ProducerStates
from headrace.compactor.rewrite import SPAN_MAX
from headrace.storage.errors import CorruptError
from headrace.storage.records.codec import Record, decode_records
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    batch_crc,
    read_header,
)
from headrace.storage.segment.verified import SoundBatch
from tests.compactor.links.source_log import LogAnswer, LogBatch, SourceLog, sealed_again
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X14")

PRODUCERS = (3, 4, 5)
CODECS = (Codec.NONE, Codec.GZIP)
_STEPS = st.one_of(
    st.tuples(st.just("plain"), st.integers(1, 4), st.sampled_from(CODECS)),
    st.tuples(st.just("idempotent"), st.integers(1, 4), st.sampled_from(PRODUCERS)),
    st.tuples(st.just("transactional"), st.integers(1, 4), st.sampled_from(PRODUCERS)),
    st.tuples(st.just("finish"), st.booleans(), st.sampled_from(PRODUCERS)),
    st.tuples(st.just("clean"), st.integers(0, 1 << 30), st.booleans()),
    st.tuples(st.just("merge"), st.integers(0, 20), st.integers(2, 4)),
    st.tuples(st.just("delete"), st.integers(0, 60), st.booleans()),
    st.tuples(st.just("epoch"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("copy"), st.integers(0, 700), st.integers(1, 5)),
)


class Copy:
    """The copy of a log: chunks of it, one after another, with what is asserted of each."""

    def __init__(self, log: SourceLog) -> None:
        self.log, self.end, self.last_epoch = log, 0, -1
        self.producers = ProducerStates()
        self.records: list[Record] = []
        self.ends_visibly = True
        """Whether it ends in a record or a marker."""

    def take(self, bytes_max: int = 1 << 30) -> Chunk:
        """Fetch and append once."""
        answer = self.log.fetch(max(self.end, self.log.start), bytes_max)
        chunk = make_chunk(
            self.end,
            self.last_epoch,
            memoryview(answer.data),
            answer.aborted,
            stable=answer.stable,
            producers=self.producers,
        )
        self.append(chunk)
        return chunk

    def append(self, chunk: Chunk) -> None:
        """Append it, as the metastore would."""
        assert chunk.base_offset == self.end
        for header, data in chunk.batches:
            assert header == read_header(data)
            assert batch_crc(data) == header.crc
            assert not header.attributes & TRANSACTIONAL_BIT
            assert not header.is_control or header is chunk.batches[-1][0]
            assert header.base_offset == self.end
            assert header.leader_epoch >= self.last_epoch
            self.ends_visibly = header.record_count > 0
            self.end, self.last_epoch = header.base_offset + header.last_offset_delta + 1, header.leader_epoch
            self.records += [] if header.is_control else decode_records(data)
        assert self.end == chunk.next_offset
        self.producers = chunk.producers


def _step(log: SourceLog, copy: Copy, step: tuple[str, int, int]) -> None:
    kind, first, second = step
    if kind == "plain":
        log.append(first, codec=Codec(second))
    elif kind == "idempotent":
        if second not in log.open:
            log.append(first, second)
    elif kind == "transactional":
        log.append(first, second, transactional=True)
    elif kind == "finish":
        log.finish(second, commit=bool(first))
    elif kind == "clean":
        log.clean({offset for offset in range(log.end) if first >> (offset % 31) & 1}, keeps_empty=bool(second))
    elif kind == "merge":
        log.merge(first, second)
    elif kind == "delete":
        log.delete_below(first)
    elif kind == "epoch":
        log.leader_epoch += first
    else:
        for _ in range(second):
            copy.take(first)


def _whole_copy(steps: list[tuple[str, int, int]]) -> tuple[SourceLog, Copy]:
    log = SourceLog()
    copy = Copy(log)
    seen: dict[int, Record] = {}
    for step in steps:
        _step(log, copy, step)
        seen |= {record.offset: record for record in log.visible}
    while copy.take().batches:
        pass
    offsets = [record.offset for record in copy.records]
    assert offsets == sorted(set(offsets)), "a record came twice, or out of order"
    assert all(seen.get(record.offset) == record for record in copy.records if record.offset >= log.start)
    assert [record for record in log.visible if record.offset not in offsets] == []
    return log, copy


@settings(max_examples=120)
@given(st.lists(_STEPS, max_size=25))
def test_each_offset_is_copied_once_and_nothing_that_was_aborted(steps: list[tuple[str, int, int]]) -> None:
    log, copy = _whole_copy(steps)
    last = max((batch.last for batch in log.batches if batch.last < log.stable), default=-1)
    assert copy.end > last, "no position reaches the end"


def test_the_end_of_a_log_that_ends_in_a_marker_is_reached() -> None:
    log = SourceLog()
    log.append(3, 4, transactional=True)
    log.finish(4, commit=False)
    copy = Copy(log)
    chunk = copy.take()
    assert copy.end == log.end == 4
    (tile, _), (marker, data) = chunk.batches
    assert (tile.record_count, tile.last_offset_delta) == (0, 2)
    assert (marker.is_control, marker.base_offset, decode_records(data)[0].key) == (True, 3, struct.pack(">hh", 0, 1))


def test_a_marker_that_does_not_end_the_log_is_part_of_a_tile() -> None:
    log = SourceLog()
    log.append(3, 4, transactional=True)
    log.finish(4, commit=False)
    log.append(1)
    chunk = Copy(log).take()
    assert [(header.base_offset, header.last_offset_delta) for header, _ in chunk.batches] == [(0, 3), (4, 0)]


def test_an_answer_without_batches_proves_nothing_of_the_end() -> None:
    chunk = make_chunk(5, 0, memoryview(bytearray()), [], stable=100, producers=ProducerStates())
    assert (chunk.batches, chunk.next_offset) == ([], 5)


def test_batches_without_a_transaction_are_stored_byte_for_byte() -> None:
    log = SourceLog()
    first = log.append(2, 3, codec=Codec.GZIP).encoded()
    second = log.append(1).encoded()
    chunk = Copy(log).take()
    assert [bytes(data) for _, data in chunk.batches] == [first, second]


def test_a_wide_gap_has_as_many_tiles_as_it_needs() -> None:
    found = tiles(7, 7 + 2 * SPAN_MAX + 1, 3)
    assert [header.base_offset for header, _ in found] == [7, 7 + SPAN_MAX, 7 + 2 * SPAN_MAX]
    with pytest.raises(CorruptError, match="jump"):
        tiles(0, chunks.GAP_MAX + 1, 0)


def test_what_was_written_while_the_source_answered_comes_with_the_next_answer() -> None:
    log = SourceLog()
    log.append(2)
    log.append(2)
    answer = log.fetch(0)
    chunk = make_chunk(0, -1, memoryview(answer.data), [], stable=3, producers=ProducerStates())
    assert (chunk.next_offset, chunk.is_cut) == (2, True)


def test_a_batch_that_was_cut_says_how_many_bytes_it_needs() -> None:
    log = SourceLog()
    size = len(log.append(3).encoded())
    assert Copy(log).take(40).bytes_wanted == size
    assert Copy(log).take(10).bytes_wanted == 0


def _broken(change: Callable[[bytearray], bytes | bytearray]) -> bytearray:
    log = SourceLog()
    log.append(3)
    return bytearray(change(bytearray(log.append(3).encoded())))


def _with(**fields: int) -> Callable[[bytearray], bytes]:
    return lambda data: sealed_again(data, read_header(data)._replace(**fields))


def _flip(data: bytearray) -> bytearray:
    data[-1] ^= 1
    return data


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_flip, CorruptError),
        (_with(record_count=10_000_000), CorruptError),
        (_with(record_count=-1), CorruptError),
        (_with(last_offset_delta=-1), CorruptError),
        (_with(last_offset_delta=1), CorruptError),
        (_with(base_offset=1), CorruptError),
        (_with(base_offset=-5), CorruptError),
        (_with(base_offset=(1 << 63) - 2), CorruptError),
        (_with(leader_epoch=1), CorruptError),
        (_with(attributes=7), CorruptError),
        (_with(batch_length=2**31 - 1), TooLargeBatchError),
        (_with(batch_length=3), CorruptError),
        (_with(magic=1), OldFormatError),
        (_with(magic=0), OldFormatError),
        (_with(magic=9), CorruptError),
    ],
)
def test_nothing_that_a_batch_cannot_be_comes_out(
    change: Callable[[bytearray], bytes | bytearray], error: type[Exception]
) -> None:
    log = SourceLog(leader_epoch=2)
    log.append(3)
    data = bytearray(log.batches[0].encoded())
    log.append(3)
    data += change(bytearray(log.batches[1].encoded()))
    with pytest.raises(error):
        make_chunk(0, -1, memoryview(data), [], stable=1 << 62, producers=ProducerStates())


def test_a_marker_that_is_none_is_refused() -> None:
    batch = LogBatch(0, 0, 0, (Record(0, 1, b"x", None, []),), (1, 0, 0), is_transactional=True)
    header = read_header(batch.encoded())
    data = sealed_again(batch.encoded(), header._replace(attributes=header.attributes | 0x20))
    with pytest.raises(CorruptError, match="marker"):
        make_chunk(0, -1, memoryview(bytearray(data)), [], stable=10, producers=ProducerStates())


@pytest.mark.parametrize("follows", [0, 2])
def test_the_batch_of_a_marker_that_was_cleaned_is_part_of_a_tile(follows: int) -> None:
    """A source's cleaner may keep it for its producer's state, without the marker."""
    log = SourceLog()
    log.append(3, 4, transactional=True)
    log.finish(4, commit=True)
    first, marker = (bytearray(batch.encoded()) for batch in log.batches)
    header = read_header(marker)._replace(record_count=0, batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES)
    later = b"".join(log.append(1).encoded() for _ in range(follows))
    data = bytearray(first + sealed_again(marker[:HEADER_BYTES], header) + later)
    chunk = make_chunk(0, -1, memoryview(data), [], stable=log.end, producers=ProducerStates())
    assert chunk.next_offset == log.end
    shown = [(each.base_offset, each.last_offset_delta, each.record_count) for each, _ in chunk.batches]
    assert shown == [(0, 2, 3), (3, 0, 0), (4, 0, 1), (5, 0, 1)][: 2 + follows]
    assert not any(each.is_control for each, _ in chunk.batches)


# -- planted bugs: each is one that the tests above would not miss


def _shown(patch: Patch, name: str, bug: object, steps: Callable[[SourceLog, Copy], None]) -> None:
    patch.replace(chunks, name, bug)
    log = SourceLog()
    with pytest.raises((AssertionError, struct.error)):
        _check(log, Copy(log), steps)


def _check(log: SourceLog, copy: Copy, steps: Callable[[SourceLog, Copy], None]) -> None:
    steps(log, copy)
    seen, answered = log.visible, log.fetch(0)
    while copy.take().batches:
        pass
    assert copy.records == seen
    assert copy.end == answered.stable
    assert copy.ends_visibly, "librdkafka's position does not reach the end"


def _gap(log: SourceLog, copy: Copy) -> None:
    log.append(2)
    log.append(2)
    log.append(2)
    log.clean({0, 1})


def _aborted(log: SourceLog, copy: Copy) -> None:
    log.append(2, 3, transactional=True)
    log.finish(3, commit=False)
    log.append(1)


def _aborted_end(log: SourceLog, copy: Copy) -> None:
    log.append(1)
    log.append(2, 3, transactional=True)
    log.finish(3, commit=False)


def _merged(log: SourceLog, copy: Copy) -> None:
    log.append(2)
    copy.take()
    log.append(2)
    log.merge(0, 2)


def test_planted_renumbering_after_a_gap(patch: Patch) -> None:
    add = chunks._Tiling.add

    class Renumbering(chunks._Tiling):
        def add(self, header: BatchHeader, data: memoryview) -> None:
            moved = header._replace(base_offset=self._end)
            add(self, moved, memoryview(sealed_again(bytes(data), moved)))

    _shown(patch, "_Tiling", Renumbering, _gap)


def test_planted_chunk_that_is_stored_twice(patch: Patch) -> None:
    class Twice(chunks._Tiling):
        def add(self, header: BatchHeader, data: memoryview) -> None:
            self.batches.append((header, data))
            super().add(header, data)

    _shown(patch, "_Tiling", Twice, _gap)


def test_planted_part_of_a_batch_that_is_stored_twice(patch: Patch) -> None:
    patch.replace(chunks, "_add_rest", lambda tiling, batch, log_end: tiling.add(batch.header, batch.data))
    log = SourceLog()
    copy = Copy(log)
    _merged(log, copy)
    with pytest.raises(AssertionError):
        copy.take()


def test_planted_aborted_data_that_is_shown(patch: Patch) -> None:
    class ShowsAll(chunks.AbortedTransactions):
        def hide(self, batch: SoundBatch) -> bool:
            super().hide(batch)
            return bool(batch.header.is_control)

    _shown(patch, "AbortedTransactions", ShowsAll, _aborted)


def test_planted_gap_at_the_end_that_no_position_passes(patch: Patch) -> None:
    class NoEnd(chunks._Tiling):
        def end_with(self, header: BatchHeader, data: memoryview) -> None:
            self._bare = None

    _shown(patch, "_Tiling", NoEnd, _aborted_end)


def test_planted_tile_at_the_end_that_a_position_does_not_pass(patch: Patch) -> None:
    class OnlyTiles(chunks._Tiling):
        def end_with(self, header: BatchHeader, data: memoryview) -> None:
            """Leave the tile."""

    _shown(patch, "_Tiling", OnlyTiles, _aborted_end)


def test_planted_batch_that_was_not_verified(patch: Patch) -> None:
    class Trusting:
        def __init__(self, data: memoryview, offset: int, leader_epoch: int) -> None:
            self.header, self.data, self.offset = read_header(data), data, offset
            self.last_offset = offset + self.header.last_offset_delta

    def alter(log: SourceLog, copy: Copy) -> None:
        log.append(2)
        answer = log.fetch(0)
        answer.data[-1] ^= 1
        patch.replace(log, "fetch", lambda offset, bytes_max=0: LogAnswer(answer.data, [], 0, 2, 2))

    _shown(patch, "SoundBatch", Trusting, alter)
