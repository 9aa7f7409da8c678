"""Which batches are certain to be the damaged ones, and what a copy of an extent has: pure, on any damage."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.agent.fetch.files.walk import start_of, walk
from headrace.compactor.mending import mend, sources
from headrace.compactor.mending.mend import ExtentLook, FoundPiece, _wanted, mended_file
from headrace.compactor.mending.sources import Stored, Wanted, at_offsets, from_own_bytes, matches, stored
from headrace.metastore.api.read import AbortedRange, Extent, run_of
from headrace.metastore.api.reports import PartitionName
from headrace.storage.records.codec import decode_records
from headrace.storage.records.header import CONTROL_BIT, read_header
from headrace.storage.segment.damage import pieces
from headrace.storage.segment.damage_reads import Examined
from headrace.storage.segment.file_range import RangeBytes
from headrace.storage.segment.format import BODY_START
from headrace.storage.segment.reader import verify_segment
from tests.planted import PlantedBugs, Trial
from tests.storage.batches import plain_batch

NAME = PartitionName(uuid.UUID(int=9), 3)
BASE = 40


class Story:
    """An extent that a merge copied out of some sources, with damage in it."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        values = [rng.randbytes(rng.choice((4, 30, 30))) for _ in range(4)]
        self.batches = [
            plain_batch(
                rng.randint(1, 3),
                rng.choice(values),
                producer_id=rng.choice((-1, 7)),
                producer_epoch=0,
                base_sequence=number * 10,
                base_timestamp=1_000 + rng.choice((0, number)),
            )
            for number in range(rng.randint(1, 6))
        ]
        body = bytearray(b"".join(self.batches))
        self.counts = [read_header(batch).last_offset_delta + 1 for batch in self.batches]
        last = BASE + sum(self.counts) - 1
        self.extent = Extent(77, BASE, last, uuid.UUID(int=1), 100, len(body), 5, 2_000)
        self.hurt = set()
        for _ in range(rng.choice((1, 1, 2))):
            number = rng.randrange(len(self.batches))
            at = rng.choice((9, 16, 18, 26, 30, 61, len(self.batches[number]) - 1))
            body[sum(map(len, self.batches[:number])) + at] ^= rng.randint(1, 255)
            self.hurt.add(number)
        self.examined = Examined(pieces(memoryview(bytes(body)), run_of(self.extent)), bytes(body))

    def other_files(self) -> list[list[Stored | None]]:
        """Sources in any order: with some of the batches, all of them, or similar ones."""
        rng = self.rng
        kept = list(map(stored, self.batches))
        start = rng.randrange(len(kept))
        other = [stored(plain_batch(rng.randint(1, 3), rng.randbytes(30))) for _ in range(3)]
        files = [kept[start : start + rng.randint(1, 4)], [*other, *kept], other]
        if rng.random() < 0.3:
            files = files[1:] if rng.random() < 0.5 else [other]
        return [list(file) for file in rng.sample(files, len(files))]

    def look(self, *, by_offset: bool) -> ExtentLook:
        """Search as the command does."""
        found = []
        for wanted in _wanted(self.examined, self.extent):
            batches = from_own_bytes(wanted)
            for run in self.other_files():
                batches = batches or sources.matches(wanted, run)
            if not batches and by_offset:
                batches = at_offsets(wanted, list(map(stored, self.batches)), BASE)
            found.append(FoundPiece(wanted.piece, batches))
        return ExtentLook(self.extent, [], 1, self.examined, found)

    def check(self, look: ExtentLook) -> None:
        """The copy has what the extent had, but for the damaged batches that were not found."""
        file = mended_file(look, NAME)
        verify_segment(file.body)
        ((swap,),) = file.runs
        assert (swap.base_offset, swap.last_offset) == self.extent[1:3]
        assert swap.max_timestamp <= self.extent.max_timestamp
        new = self.extent._replace(position=BODY_START, length=swap.length)
        body = RangeBytes(memoryview(file.body)[BODY_START : BODY_START + swap.length], checked=False)
        lost = {o for one in look.lost for o in range(one.piece.base_offset, one.piece.last_offset + 1)}
        records = [
            (batch.offset + record.offset - read_header(batch.data).base_offset, record.value, record.timestamp)
            for batch in walk(new, body, start_of(new))
            for record in decode_records(batch.data)
        ]
        offset, wanted = BASE, []
        for number, (batch, count) in enumerate(zip(self.batches, self.counts, strict=True)):
            inside = [(offset + r.offset, r.value, r.timestamp) for r in decode_records(memoryview(batch))]
            missing = [one for one in inside if one[0] in lost]
            assert not missing or number in self.hurt or len(self.hurt) > 1
            wanted += [one for one in inside if one[0] not in lost]
            offset += count
        assert records == wanted


def run(seed: int) -> None:
    story = Story(seed)
    for by_offset in (False, True):
        look = story.look(by_offset=by_offset)
        if look.found:
            story.check(look)


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("seed", range(30))
def test_a_copy_has_the_same_records_but_the_lost_ones(seed: int) -> None:
    run(seed)


def _any_of_that_size(wanted: Wanted, run: Sequence[Stored | None]) -> list[Stored]:
    """Planted: a batch with as many offsets is taken for the damaged one."""
    return [one for one in run if one is not None and one.offsets == wanted.offsets][:1]


def _first_of_several(wanted: Wanted, run: Sequence[Stored | None]) -> list[Stored]:
    """Planted: between the neighbours may be anything."""
    places = [n for n, one in enumerate(run) if one and wanted.before and one.identity == wanted.before.identity]
    return [one for one in run[places[0] + 1 : places[0] + 2] if one] if places else []


def _with_the_neighbour(look: ExtentLook, name: PartitionName) -> Any:
    """Planted: the batch before the damage is skipped, too."""
    old = look.examined.pieces
    number = next((n for n, piece in enumerate(old) if piece.why and n and not old[n - 1].why), None)
    if number is not None:
        before = old[number - 1]._replace(why="neighbour")
        look = look._replace(
            examined=look.examined._replace(pieces=[*old[: number - 1], before, *old[number:]]),
            found=[*look.found, FoundPiece(before, [])],
        )
    return ORIGINAL(look, name)


ORIGINAL = mended_file
BUGS = PlantedBugs("mending damage")
PLANTED: dict[str, tuple[object, str, Callable[..., object]]] = {
    "repair takes a batch that does not match": (sources, "matches", _any_of_that_size),
    "repair takes what follows the neighbour": (sources, "matches", _first_of_several),
    "skip drops the neighbour batch": (mend, "mended_file", _with_the_neighbour),
}


@BUGS.cases(PLANTED)
def test_planted_bugs_are_caught(bug: str, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    trial.plant(*PLANTED[bug])
    monkeypatch.setitem(globals(), "mended_file", mend.mended_file)
    for seed in trial.seeds():
        with trial.shown_by(Exception):
            run(seed)


def wanted_in(batches: list[bytes], number: int, at: int) -> Wanted:
    body = bytearray(b"".join(batches))
    body[sum(map(len, batches[:number])) + at] ^= 1
    count = sum(read_header(batch).last_offset_delta + 1 for batch in batches)
    extent = Extent(1, 0, count - 1, uuid.UUID(int=1), 16, len(body), 0, 0)
    (wanted,) = _wanted(Examined(pieces(memoryview(bytes(body)), run_of(extent)), bytes(body)), extent)
    return wanted


def test_a_batch_between_the_same_neighbours_is_the_damaged_one() -> None:
    batches = [plain_batch(1, b"%d" % n * 9) for n in range(3)]

    assert matches(wanted_in(batches, 1, 26), list(map(stored, batches))) == [stored(batches[1])]


def test_two_different_batches_between_the_same_neighbours_are_not_certain() -> None:
    batches = [plain_batch(1, b"%d" % n * 9) for n in range(3)]
    twice = [batches[0], plain_batch(1, b"x" * 9), batches[2], *batches]
    wanted = wanted_in(batches, 1, 10)._replace(data=b"")

    assert matches(wanted, list(map(stored, twice))) == []


def test_a_batch_of_another_time_is_not_the_damaged_one() -> None:
    batches = [plain_batch(1, b"same", base_timestamp=1_000)]

    assert matches(wanted_in(batches, 0, 70), [stored(plain_batch(1, b"same", base_timestamp=1_001))]) == []


def test_offsets_that_a_source_batch_crosses_are_not_taken() -> None:
    batches = [plain_batch(2, b"%d" % n * 9) for n in range(3)]
    other = [stored(plain_batch(count, b"z")) for count in (1, 2, 3)]

    assert at_offsets(wanted_in(batches, 1, 70), other, 0) == []


def test_the_marker_of_an_aborted_transaction_is_not_skipped() -> None:
    batches = [plain_batch(2, b"%d" % n * 9) for n in range(3)]
    wanted = wanted_in(batches, 1, 70)
    body = b"".join(batches)
    extent = Extent(1, 0, 5, uuid.UUID(int=1), 16, len(body), 0, 5_000)
    damage = wanted.piece
    found = pieces(memoryview(body), run_of(extent))
    examined = Examined([found[0], damage, found[2]], body)
    look = ExtentLook(extent, [AbortedRange(1, 7, 0, 3)], 1, examined, [FoundPiece(damage, [])])

    file = mended_file(look, NAME)

    new = extent._replace(position=BODY_START, length=file.body_bytes)
    body_range = RangeBytes(memoryview(file.body)[BODY_START : BODY_START + file.body_bytes], checked=False)
    headers = [read_header(batch.data) for batch in walk(new, body_range, start_of(new))]
    assert [(h.base_offset, h.record_count) for h in headers] == [(0, 2), (2, 0), (3, 1), (4, 2)]
    assert headers[2].attributes & CONTROL_BIT
    assert headers[2].producer_id == 7
