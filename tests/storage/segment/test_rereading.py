"""When failed reads are damage, when a bad transfer; what a sound batch is."""

from __future__ import annotations

import random
import uuid
from typing import NamedTuple

import pytest

from headrace.storage.errors import BadTransferError, CorruptError, DamagedError
from headrace.storage.file_id import object_key
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange
from headrace.storage.segment import rereading
from headrace.storage.segment.format import Footer
from headrace.storage.segment.rereading import PAUSES_MAX_S, READS_MAX, SAME_READS, ReadVerdict, VerifiedReads, judge
from headrace.storage.segment.verified import SoundBatch, sound_batches
from tests.storage.altered_reads import AlteringStore, InstantClock, flipped, reads_of
from tests.storage.batches import plain_batch
from tests.storage.segments import Placed, lay_out


class Place(NamedTuple):
    """An extent's row."""

    file_id: uuid.UUID
    position: int
    length: int
    base_offset: int
    last_offset: int


FILE_ID = uuid.UUID(int=1)
DATA = plain_batch(2) + plain_batch(3)
PLACE = Place(FILE_ID, 0, len(DATA), 10, 14)
A_FILE, _ = lay_out([Placed(uuid.UUID(int=2), number, plain_batch(2)) for number in range(3)])


@pytest.mark.parametrize(
    ("reads", "verdict"),
    [
        ("a", ReadVerdict.AGAIN),
        ("aa", ReadVerdict.AGAIN),
        ("aaa", ReadVerdict.DAMAGED),
        ("aba", ReadVerdict.AGAIN),
        ("abbb", ReadVerdict.DAMAGED),
        ("aabaa", ReadVerdict.BAD_TRANSFER),
        ("abcde", ReadVerdict.BAD_TRANSFER),
    ],
)
def test_equal_reads_in_a_row_are_damage(reads: str, verdict: ReadVerdict) -> None:
    assert judge([read.encode() for read in reads]) is verdict


def test_a_batch_has_the_offset_and_the_epoch_of_its_row() -> None:
    first, second = sound_batches(memoryview(DATA), PLACE, leader_epoch=7)
    assert (first.offset, first.last_offset, second.offset, second.last_offset) == (10, 11, 12, 14)
    assert [batch.header.leader_epoch for batch in (first, second)] == [7, 7]
    assert second.data.readonly
    assert sound_batches(memoryview(DATA), PLACE, leader_epoch=7, start=12, end=13)[0].offset == 12


@pytest.mark.parametrize("at", [*range(8, 12), 16, *range(17, 61), 70], ids=str)
def test_an_altered_byte_is_found(at: int) -> None:
    """Base offset and leader epoch, which are the row's, are the only other bytes of a batch."""
    with pytest.raises(CorruptError):
        sound_batches(memoryview(flipped(DATA, [at], 0x40)), PLACE, leader_epoch=7)


def test_what_contradicts_the_row_is_not_sound() -> None:
    for place in (PLACE._replace(length=len(DATA) + 1), PLACE._replace(last_offset=15), PLACE._replace(base_offset=9)):
        with pytest.raises(CorruptError):
            sound_batches(memoryview(DATA), place, leader_epoch=7)


def test_no_sound_batch_is_made_of_other_bytes() -> None:
    for wrong in (b"", DATA, flipped(plain_batch(1), [65]), plain_batch(1)[:-1]):
        with pytest.raises(CorruptError):
            SoundBatch(memoryview(bytearray(wrong)), 0, 0)


class Sequence:
    """Answers of a store, one after the other; the last one again and again. An error is raised."""

    def __init__(self, *answers: bytes | CorruptError) -> None:
        self.answers = list(answers)
        self.asked: list[ByteRange | None] = []

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self.asked.append(byte_range)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, CorruptError):
            raise answer
        return answer


async def read(*answers: bytes | CorruptError, first: bytes | CorruptError | None = None) -> int:
    """Return how many GETs it took."""
    store = Sequence(*answers)
    await reads_of(store).batches(PLACE, leader_epoch=1, first=first)  # type: ignore[arg-type]
    return len(store.asked)


async def test_one_sound_read_is_enough() -> None:
    bad, worse, short = flipped(DATA, [65]), flipped(DATA, [66]), CorruptError("short")
    assert await read(DATA) == 1
    assert await read(DATA, first=DATA) == 0
    assert await read(bad, DATA, first=bad) == 2
    assert await read(bad, worse, bad, short, DATA) == 5
    with pytest.raises(DamagedError, match=r"file=.* position=0 length=\d+ offsets=10-14"):
        await read(bad)
    with pytest.raises(DamagedError):
        await read(bad[:-1])
    with pytest.raises(DamagedError):
        await read(short)
    with pytest.raises(BadTransferError):
        await read(bad, worse, bad, worse, bad, DATA)


async def test_pauses_have_a_limit() -> None:
    """A file that is damaged all over does not hold a job."""
    slept = []

    class Clock(InstantClock):
        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    failed: list[int] = []
    reads = VerifiedReads(
        Sequence(flipped(DATA, [65])),  # type: ignore[arg-type]
        Clock(),
        random.Random(1),
        on_failed=lambda: failed.append(1),
    )
    for _ in range(100):
        with pytest.raises(DamagedError):
            await reads.batches(PLACE, leader_epoch=1)
    assert sum(slept) == pytest.approx(PAUSES_MAX_S)
    assert len(slept) == 100 * (SAME_READS - 1)
    assert len(failed) == 100 * SAME_READS
    assert len(rereading.PAUSES_S) == READS_MAX - 1


async def test_a_footer_is_read_again() -> None:
    store = MemoryStore()
    await store.put(object_key(FILE_ID), A_FILE)
    altering = AlteringStore(store, random.Random(5), rate=0.5)
    for _ in range(20):
        try:
            footer = await reads_of(altering).footer(object_key(FILE_ID), len(A_FILE))
        except BadTransferError:
            continue
        assert isinstance(footer, Footer)
        assert footer.object_size == len(A_FILE)
    assert altering.altered > 3


async def test_reads_without_a_checksum_have_to_agree() -> None:
    async def agreed(*answers: bytes, crc: int | None = None) -> bytes:
        return await read_agreed(Sequence(*answers), "key", crc)  # type: ignore[arg-type]

    assert await agreed(b"1", b"2", b"2") == b"2"
    assert await agreed(b"1", b"2", b"1", b"1") == b"1"
    assert await agreed(b"x", b"123456789", crc=0xE3069283) == b"123456789"
    with pytest.raises(DamagedError):
        await agreed(b"x", crc=0xE3069283)
    with pytest.raises(BadTransferError):
        await agreed(*(b"%d" % number for number in range(9)))
