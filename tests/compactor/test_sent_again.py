"""What a client sent again after a promotion lost it is not put back: neither under its sequence nor the next epoch.

An idempotent producer of a lost batch gets OUT_OF_ORDER_SEQUENCE_NUMBER. Java raises its epoch and sends the batch
again from sequence 0: its header has another epoch and sequence, and all else is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from headrace.compactor import put_back
from headrace.compactor.put_back import SentAgain, plan_put_back
from headrace.metastore.life.forgotten import OffsetRange
from headrace.metastore.log.snapshot import load_image
from headrace.storage.records.header import BatchHeader, read_header
from tests.compactor.test_lost import _certain
from tests.compactor.world import CompactionWorld
from tests.metastore.sessions import session
from tests.patch import Patch
from tests.storage.altered_reads import reads_of
from tests.storage.batches import BASE_TIME_MS, plain_batch

pytestmark = pytest.mark.requirement("W1", "X4")

KEY = 5


def sent(epoch: int, sequence: int, value: bytes = b"v", *, at_ms: int = 0, producer: int = 7) -> bytes:
    """Three records."""
    fields = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    return plain_batch(3, value, base_timestamp=BASE_TIME_MS + at_ms, **fields)


async def _forget(world: CompactionWorld, offset: int) -> None:
    """The rows of heads and of producers, too, are those of before the lost commit."""
    async with session(world.url) as raw:
        await raw.execute("UPDATE partition_heads SET high_watermark = %s", (offset,))
        await raw.execute("UPDATE producer_state SET next_sequence = %s", (offset,))


async def _planned(world: CompactionWorld, fed: dict[uuid.UUID, set[OffsetRange]]) -> int:
    topics = (await load_image(world.postgres.cluster)).topics_by_id
    return sum(
        batch.records
        for batch in (await plan_put_back(world.postgres.index, reads_of(world.store), fed, topics)).batches
    )


async def test_a_batch_that_was_sent_again_under_the_next_epoch_is_not_put_back(world: CompactionWorld) -> None:
    (a,) = await world.topic("t", 1)
    await world.commit((a, sent(0, 0, b"kept")))
    await world.commit((a, sent(0, 3)))
    fed = await _certain(world, a)
    await _forget(world, 3)
    assert await _planned(world, fed) == 3, "its client has not sent it again yet"
    await world.commit((a, sent(1, 0)))
    assert [(extent.base_offset, extent.last_offset) for extent in await world.extents(a)] == [(0, 2), (3, 5)]
    assert await _planned(world, fed) == 0


async def test_what_two_promotions_lost_is_put_back_once(world: CompactionWorld) -> None:
    """The second one lost what the client had sent again after the first."""
    (a,) = await world.topic("t", 1)
    await world.commit((a, sent(0, 0, b"kept")))
    fed: dict[uuid.UUID, set[OffsetRange]] = {}
    for epoch, sequence in ((0, 3), (1, 0)):
        await world.commit((a, sent(epoch, sequence)))
        fed |= await _certain(world, a)
        await _forget(world, 3)
    assert len(fed) == 2
    assert await _planned(world, fed) == 3


def put_back_of(log: list[bytes], lost: list[bytes]) -> list[int]:
    """Return which of the lost batches are put back, by their place."""
    known, chosen = SentAgain(), []
    for batch in log:
        known.add(KEY, read_header(batch), memoryview(batch))
    for place, batch in enumerate(lost):
        if not known.takes(KEY, read_header(batch), memoryview(batch)):
            known.add(KEY, read_header(batch), memoryview(batch))
            chosen.append(place)
    return chosen


def check_recognition() -> None:
    """What is a copy, and what only looks like one."""
    assert put_back_of([sent(0, 3)], [sent(0, 3)]) == [], "stored under the same sequence"
    assert put_back_of([sent(1, 0)], [sent(0, 3)]) == [], "Java's next epoch"
    assert put_back_of([sent(2, 6)], [sent(0, 3)]) == [], "the epoch was raised twice"
    assert put_back_of([], [sent(0, 3), sent(1, 0), sent(2, 0)]) == [0], "lost by several promotions"
    assert put_back_of([sent(1, 0, b"w")], [sent(0, 3)]) == [0], "other records"
    assert put_back_of([sent(1, 0, at_ms=1)], [sent(0, 3)]) == [0], "a constant value at another time"
    assert put_back_of([sent(0, 6)], [sent(0, 3)]) == [0], "the same twice, in one epoch"
    assert put_back_of([sent(1, 0, producer=8)], [sent(0, 3)]) == [0], "another producer's"
    assert put_back_of([sent(1, 0)], [sent(0, 3), sent(0, 6)]) == [1], "the same twice, and one of them sent again"
    assert put_back_of([sent(1, 0), sent(1, 3)], [sent(0, 3), sent(0, 6)]) == []
    assert put_back_of([sent(-1, -1, producer=-1)], [sent(-1, -1, producer=-1)]) == [0], "it has no producer id"


def test_a_copy_is_recognised_and_what_looks_like_one_is_not() -> None:
    check_recognition()


def _any_time(key: int, header: BatchHeader, batch: memoryview) -> put_back.Content:
    return (key, header.producer_id, bytes(batch[put_back.HEADER_BYTES :]))


def _sequence_only(key: int, header: BatchHeader, batch: memoryview) -> put_back.Content:
    return (key, header.producer_id, repr(header).encode())


def _any_producer(key: int, header: BatchHeader, batch: memoryview) -> put_back.Content:
    return (key, 0, repr(header.base_timestamp).encode() + bytes(batch[put_back.HEADER_BYTES :]))


def _no_record(key: int, header: BatchHeader, batch: memoryview) -> put_back.Content:
    return (key, header.producer_id, repr(header.base_timestamp).encode())


BUGS: dict[str, Callable[[int, BatchHeader, memoryview], put_back.Content]] = {
    "the next epoch is not recognised": _sequence_only,
    "the time is not compared": _any_time,
    "the producer is not compared": _any_producer,
    "records are not compared": _no_record,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_in_the_recognition_is_caught(bug: str, patch: Patch) -> None:
    patch.replace(put_back, "_content", BUGS[bug])
    with pytest.raises(AssertionError):
        check_recognition()


class _CoversAll(SentAgain):
    """Planted bug: one batch of the next epoch covers any number of equal lost ones."""

    def takes(self, key: int, header: BatchHeader, batch: memoryview) -> bool:
        taken = super().takes(key, header, batch)
        if taken:
            self.add(key, header._replace(producer_epoch=header.producer_epoch + 1), batch)
        return taken


def test_a_batch_that_covers_several_lost_ones_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SentAgain", _CoversAll)
    with pytest.raises(AssertionError):
        check_recognition()
