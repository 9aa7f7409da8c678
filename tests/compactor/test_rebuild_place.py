"""Placing what files hold: any history of flushes, merges and deletions of one partition, without any server.

A record's name is the offset that it had, so an answer is right when names and offsets agree.
"""

from __future__ import annotations

from itertools import count, pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.compactor.rebuild_place import Placement, ScannedBatch, guess, settle

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["flush", "flush", "flush", "merge", "merge", "open", "delete", "stop"]),
        *[st.integers(0, 9)] * 2,
    ),
    max_size=40,
)


class Partition:
    """Its files as the bucket holds them, and which of them a metastore would name."""

    def __init__(self) -> None:
        self.end = 0
        self.files: dict[int, list[ScannedBatch]] = {}
        self.names: dict[bytes, range] = {}
        self.live: list[int] = []
        """Files in log order."""
        self.dead: list[int] = []
        self._numbers = count()

    def take(self, step: Step) -> None:
        kind, first, size = step
        if kind == "flush":
            sizes = [first + 1, size + 1][: 1 + first % 2]
            ends = [self.end + sum(sizes[: n + 1]) for n in range(len(sizes))]
            self._add(0, [range(end - records, end) for end, records in zip(ends, sizes, strict=True)])
            self.end = ends[-1]
        elif kind == "delete":
            for file in self.dead[:size]:
                self.files.pop(file, None)
            self.dead = self.dead[size:]
        elif window := self._window(0 if kind == "merge" else 1, first, size + 1):
            runs = [self.names[batch.content] for file in window for batch in self.files[file]]
            if kind == "open":
                runs = [range(runs[0].start, runs[-1].stop)]
            self._add(1 if kind == "merge" else 2, runs, None if kind == "stop" else window)

    def _window(self, level: int, first: int, size: int) -> list[int]:
        """Neighbours of a level, none of them twice merged."""
        same = [file for file in self.live if self.files[file][0].level == level]
        window = same[first % max(len(same), 1) :][:size]
        runs = [self.names[b.content] for file in window for b in self.files[file]]
        return window if all(a.stop == b.start for a, b in pairwise(runs)) else window[:1]

    def _add(self, level: int, runs: list[range], replaced: list[int] | None = None) -> None:
        """A file; without `replaced`, a merged one of a worker that crashed before the swap."""
        file = next(self._numbers)
        self.files[file] = []
        for run in runs:
            # a copy is the batch that was sent; what was opened is another
            content = b"%d-%d" % (run.start, run.stop) if level < 2 else b"%d-%d opened" % (run.start, run.stop)
            self.names[content] = run
            born_ms = max(self.end, run.stop) if level == 0 else self.end
            self.files[file].append(
                ScannedBatch(
                    file, run.start, 1, level, born_ms, run.start if level else 0, len(run), run.stop, False, content
                )
            )
        if replaced:
            self.live[self.live.index(replaced[0])] = file
            self.live = [each for each in self.live if each not in replaced]
            self.dead += replaced
        elif level == 0:
            self.live.append(file)
        else:
            self.dead.append(file)


def rebuilt(partition: Partition) -> Placement:
    """Do the same as rebuild.py does it; the records in merged files are known from their names."""
    placement = settle([batch for batches in partition.files.values() for batch in batches])
    flushed, placement.open = placement.open, []
    opened = [partition.names[batch.content] for batch in placement.batches.values() if batch.level == 2]
    for batch in flushed:
        names = partition.names[batch.content]
        is_there = any(run.start <= names.start and names.stop <= run.stop for run in opened)
        placement.recognise(batch, names.start if is_there else None)
    guess(placement)
    return placement


@given(STEPS)
def test_every_live_record_is_placed_once_in_order_at_its_offset_in_a_merged_file(steps: list[Step]) -> None:
    partition = Partition()
    for step in steps:
        partition.take(step)
    placement = rebuilt(partition)
    assert placement.offsets == sorted(placement.batches)
    names: list[int] = []
    end = 0
    for offset in placement.offsets:
        batch = placement.batches[offset]
        run = partition.names[batch.content]
        assert offset >= end
        end = offset + batch.records
        names += run
        if batch.level:
            assert offset == run.start
    live = {
        name for file in partition.live for batch in partition.files[file] for name in partition.names[batch.content]
    }
    assert len(set(names)) == len(names), "twice"
    assert [name for name in names if name in live] == sorted(live)
    assert names == sorted(names)


def batch(file: int, offset: int, records: int, level: int, content: bytes = b"", time: int = 0) -> ScannedBatch:
    return ScannedBatch(file, 16, 1, level, file, offset, records, time or offset, False, content or b"%d" % file)


def test_as_many_records_as_possible_are_taken_of_what_overlaps() -> None:
    """Two merges that raced: the larger batch would cost the records on both sides of it."""
    sides = [batch(1, 0, 6, 1), batch(2, 6, 6, 1)]
    assert settle([*sides, batch(3, 2, 8, 2)]).offsets == [0, 6]
    assert [b.level for b in settle([*sides, batch(3, 0, 12, 2)]).batches.values()] == [2]


def test_what_is_newer_than_all_merged_batches_is_behind_them() -> None:
    """Even where a gap has room: what was in it is lost."""
    found = settle([batch(5, 0, 3, 1, time=30), batch(6, 6, 3, 1, time=90), batch(4, 0, 3, 0, b"late", time=99)])
    guess(found)
    assert (found.offsets, found.batches[9].content, found.guessed_records) == ([0, 6, 9], b"late", 3)


def test_what_is_older_than_the_first_merged_batch_is_right_before_it() -> None:
    found = settle([batch(5, 10, 3, 1, time=30), batch(1, 0, 2, 0, b"a", time=5), batch(2, 0, 2, 0, b"b", time=6)])
    guess(found)
    assert [(offset, b.content) for offset, b in sorted(found.batches.items())] == [(6, b"a"), (8, b"b"), (10, b"5")]
