"""What is found sound in damaged runs of batches: all of it, at its real offsets, and nothing else."""

from __future__ import annotations

import random

import pytest

from headrace.storage.records.header import read_header
from headrace.storage.segment.damage import BatchMark, BatchRun, Piece, damaged, pieces
from tests.storage.batches import plain_batch

START, BASE = 1_000, 50


class Layout:
    """Batches of one run, and where they are."""

    def __init__(self, batches: list[bytes]) -> None:
        self.batches = batches
        self.bytes = bytearray(b"".join(batches))
        self.true: list[Piece] = []
        position, offset = START, BASE
        for batch in batches:
            count = read_header(batch).last_offset_delta + 1
            self.true.append(Piece(position, len(batch), offset, offset + count - 1))
            position, offset = position + len(batch), offset + count
        self.run = BatchRun(START, len(self.bytes), BASE, offset - 1)

    def flip(self, number: int, at: int, bits: int = 1) -> None:
        """Alter a byte of a batch."""
        self.bytes[self.true[number].position - START + at] ^= bits

    def found(self, *marked: int) -> list[Piece]:
        """The pieces, with marks at these batches."""
        marks = [BatchMark(self.true[number].position, self.true[number].base_offset) for number in marked]
        return pieces(memoryview(self.bytes), self.run, marks)

    def check(self, found: list[Piece]) -> None:
        """Pieces cover the run in order, and the sound ones are the original batches at their offsets."""
        position, offset = START, BASE
        for piece in found:
            assert (piece.position, piece.base_offset) == (position, offset)
            position, offset = piece.end, piece.last_offset + 1
            if not piece.why:
                assert piece in self.true
                place = piece.position - START
                original = b"".join(self.batches)[place : place + piece.length]
                same = bytes(self.bytes[place : place + piece.length])
                assert (same[8:12], same[16:]) == (original[8:12], original[16:])
        assert (position, offset) == (START + len(self.bytes), self.run.last_offset + 1)


def layout(count: int = 5) -> Layout:
    return Layout([plain_batch(3 + number, bytes([65 + number]) * 50) for number in range(count)])


@pytest.fixture
def run() -> Layout:
    return layout()


@pytest.mark.parametrize("at", [8, 9, 10, 11, 16, 17, 20, 21, 26, 40, 60, 61, 100])
@pytest.mark.parametrize("number", [0, 2, 4])
def test_one_flipped_bit_damages_one_batch(run: Layout, number: int, at: int) -> None:
    run.flip(number, at)

    found = run.found()

    run.check(found)
    assert [(p.position, p.length, p.base_offset, p.last_offset) for p in damaged(found)] == [run.true[number][:4]]


@pytest.mark.parametrize("at", [*range(8), *range(12, 16)])
def test_what_readers_replace_is_no_damage(run: Layout, at: int) -> None:
    run.flip(2, at)

    assert run.found() == run.true


def test_a_header_that_fits_is_the_claim_of_its_batch(run: Layout) -> None:
    run.flip(2, 70)

    (piece,) = damaged(run.found())

    assert piece.claim is not None
    assert piece.claim.record_count == 5


@pytest.mark.parametrize("at", [10, 16])
def test_a_header_that_does_not_fit_claims_nothing(run: Layout, at: int) -> None:
    run.flip(2, at)

    (piece,) = damaged(run.found())

    assert piece.claim is None


def test_offsets_between_damaged_batches_follow_from_a_mark(run: Layout) -> None:
    for number in (1, 3):
        run.flip(number, 10)

    assert [piece.base_offset for piece in damaged(run.found())] == [run.true[1].base_offset]
    found = run.found(2)
    run.check(found)
    assert [piece[:4] for piece in damaged(found)] == [run.true[1][:4], run.true[3][:4]]


def test_offsets_between_damaged_batches_follow_from_headers_that_fit_together(run: Layout) -> None:
    for number in (1, 3):
        run.flip(number, 80)

    found = run.found()

    run.check(found)
    assert [piece[:4] for piece in damaged(found)] == [run.true[1][:4], run.true[3][:4]]


def test_headers_that_do_not_fit_together_say_nothing_of_the_batches_between(run: Layout) -> None:
    run.flip(1, 26)
    run.flip(3, 80)

    (piece,) = damaged(run.found())

    assert (piece.base_offset, piece.last_offset) == (run.true[1].base_offset, run.true[3].last_offset)


def test_a_batch_in_a_record_is_not_taken_for_one() -> None:
    inner = plain_batch(1, b"inner")
    run = Layout([plain_batch(2, b"a"), plain_batch(1, inner * 3), plain_batch(2, b"b")])
    run.flip(1, 10)

    found = run.found()

    run.check(found)
    assert [piece[:4] for piece in damaged(found)] == [run.true[1][:4]]


def test_sound_batches_of_other_offsets_are_all_damage(run: Layout) -> None:
    run.run = run.run._replace(last_offset=run.run.last_offset + 1)

    (piece,) = run.found()

    assert piece.why
    assert piece[:4] == run.run


@pytest.mark.parametrize("seed", range(25))
def test_any_damage_leaves_what_is_sound_at_its_offset(seed: int) -> None:
    rng = random.Random(seed)
    batches = []
    for _ in range(rng.randint(1, 9)):
        value = rng.randbytes(rng.randint(0, 120))
        if rng.random() < 0.3:
            value = plain_batch(rng.randint(1, 2), b"inner") * rng.randint(1, 2)
        batches.append(plain_batch(rng.randint(1, 4), value))
    run = Layout(batches)
    marked = sorted(rng.sample(range(1, len(batches)), rng.randint(0, len(batches) - 1))) if len(batches) > 1 else []
    touched = set()
    for _ in range(rng.choice((1, 1, 2, 3))):
        number = rng.randrange(len(batches))
        at = rng.randrange(len(batches[number]))
        run.flip(number, at, rng.randint(1, 255))
        if 8 <= at < 12 or at >= 16:
            touched.add(number)

    found = run.found(*marked)

    run.check(found)
    lost = {number for number, piece in enumerate(run.true) if piece not in found}
    if len(touched) == 1:
        assert lost <= touched
