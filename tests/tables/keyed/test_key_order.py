"""A keyed table takes a topic's partitions so that each key's records come in order through changes of the count."""

from __future__ import annotations

import sys
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.metastore.log.image import TopicImage
from headrace.metastore.partitions.changes import Change, Expansion
from headrace.metastore.partitions.topic_partitions import CreatedFrom, Split
from headrace.scan.plan import WantedOffsets
from headrace.tables.keyed import key_order
from headrace.tables.keyed.key_order import PartitionEnds, PartitionWait, in_key_order, waits_of_topic
from headrace.tables.state import TablePosition
from tests.key_order.partition_order import OrderError, OrderWorld
from tests.planted import PlantedBugs, Trial

pytestmark = pytest.mark.requirement("X11")
SEEDS = range(6)


class TableWorld(OrderWorld):
    """In place of a group, a table: each commit has some records of each partition that may go on, partitions in any
    order. Its positions stay when a partition is removed.
    """

    def carry_out(self, change: Change) -> None:
        positions = dict(self.positions)
        super().carry_out(change)
        self.positions = positions
        if isinstance(change, Expansion):
            for index in change.created:
                self.positions.setdefault(index, 0)

    def _deliver(self) -> None:
        for index in self.present():  # what retention removed is a gap
            self.positions[index] = self._position(index)
        offsets = {index: TablePosition(at) for index, at in self.positions.items()}
        wanted = {
            index: WantedOffsets(self.positions[index], self.logs[index].end)
            for index in self.present()
            if self.positions[index] < self.logs[index].end
        }
        allowed = list(in_key_order(wanted, offsets, waits_of_topic(self._image(), self._ends())).items())
        self.rng.shuffle(allowed)
        for index, (start, end) in allowed:
            self.positions[index] = self.rng.randint(start, end)
            for record in self.logs[index].records[start : self.positions[index]]:
                self._judge((record.producer, record.key), record.number)

    def _report(self) -> None:
        """A table waits for no reports."""

    def _image(self) -> Any:
        parts = dict(enumerate(self.topic.partitions))
        return SimpleNamespace(
            created_from={n: each.created_from for n, each in parts.items() if each.created_from is not None},
            before_deletion={n: parts[n].before_deletion for n in self.topic.marked},
            splits={},
            aliases={},
            has=lambda n: not parts[n].is_removed,
        )

    def _ends(self) -> PartitionEnds:
        image = self._image()
        asked = [
            *image.created_from.values(),
            *(pair for each in image.before_deletion.values() for pair in each.items()),
        ]
        epochs = {(p, epoch): self.end_of(p, epoch) for p, epoch in asked}
        return PartitionEnds(epochs, {p: self.high_watermark(p) for p in self.topic.marked})


def test_a_table_has_each_keys_records_in_order_through_changes_of_the_count() -> None:
    worlds = [TableWorld(seed).run() for seed in SEEDS]
    assert sum(world.changes for world in worlds) > 10 * len(SEEDS)


def _early(wanted: Any, positions: Any, waits: Any) -> Any:
    return _in_key_order(wanted, positions, [w._replace(until=None if w.until is None else w.until - 1) for w in waits])


_in_key_order = in_key_order
BUGS: dict[str, tuple[Any, str, Any]] = {
    "new partitions do not wait": (key_order, "_of_children", lambda *_: ()),
    "partitions do not wait for those that were marked": (key_order, "_of_ancestors", lambda *_: ()),
    "a wait ends one record early": (sys.modules[__name__], "in_key_order", _early),
}
PLANTED = PlantedBugs("the order of keys in tables", most=400)


@PLANTED.cases(BUGS)
def test_each_planted_bug_is_caught(bug: str, trial: Trial) -> None:
    trial.plant(*BUGS[bug])
    for seed in trial.seeds():
        with trial.shown_by(OrderError):
            TableWorld(seed).run()


def topic(**more: Any) -> TopicImage:
    return TopicImage(uuid.uuid4(), 1, "orders", 2, 4, (1, 1, 1, 1), **more)


def wanted(*ends: int) -> dict[int, WantedOffsets]:
    return {partition: WantedOffsets(0, end) for partition, end in enumerate(ends) if end}


def test_a_child_of_a_doubling_waits_for_the_boundary_of_its_parent() -> None:
    doubled = topic(created_from={2: CreatedFrom(0, 0), 3: CreatedFrom(1, 0)}, splits={0: Split(2), 1: Split(3, 7)})
    waits = waits_of_topic(doubled, PartitionEnds({(0, 0): 5, (1, 0): 5}, {}))
    assert in_key_order(wanted(9, 9, 9, 9), {}, waits) == wanted(9, 9)
    have = {0: TablePosition(100), 1: TablePosition(6)}
    assert in_key_order(wanted(0, 9, 9, 9), have, waits) == wanted(0, 9), "no boundary yet, and one that is not reached"
    assert in_key_order(wanted(0, 9, 9, 9), have | {1: TablePosition(7)}, waits) == {
        1: WantedOffsets(0, 9), 3: WantedOffsets(0, 9)
    }  # fmt: skip


def test_a_parent_waits_for_the_end_of_the_child_that_was_halved_away() -> None:
    halved = topic(created_from={2: CreatedFrom(0, 0), 3: CreatedFrom(1, 0)}, aliases={2: 0, 3: 1})
    waits = waits_of_topic(halved, PartitionEnds({(0, 0): 5, (1, 0): 5}, {2: 4, 3: 0}))
    assert in_key_order(wanted(9, 9, 4, 0), {}, waits) == {0: WantedOffsets(0, 5), 1: WantedOffsets(0, 9)}
    have = {0: TablePosition(5)}
    after = {0: WantedOffsets(5, 9), 2: WantedOffsets(0, 4)}
    assert in_key_order(after, have, waits) == {2: WantedOffsets(0, 4)}
    assert in_key_order(after, have | {2: TablePosition(4)}, waits) == after


def test_an_alias_of_an_alias_waits_and_the_waits_end() -> None:
    twice = topic(created_from={1: CreatedFrom(0, 0), 3: CreatedFrom(1, 0)}, aliases={1: 0, 3: 0})
    waits = waits_of_topic(twice, PartitionEnds({(0, 0): 5, (1, 0): 2}, {1: 4, 3: 6}))
    positions = {n: TablePosition(0) for n in range(4)}
    ends = {0: 9, 1: 4, 3: 6}
    order = []
    while left := {n: WantedOffsets(positions[n].offset, end) for n, end in ends.items() if positions[n].offset < end}:
        allowed = in_key_order(left, positions, waits)
        assert allowed, f"nothing may go on: {positions}"
        order += [(n, each.start, each.end) for n, each in allowed.items()]
        positions |= {n: TablePosition(each.end) for n, each in allowed.items()}
    assert order == [(0, 0, 5), (1, 0, 4), (3, 0, 6), (0, 5, 9)]


def test_a_source_that_is_gone_is_not_waited_for() -> None:
    grown = topic(created_from={3: CreatedFrom(1, 0)}, removed=frozenset({1}))
    assert waits_of_topic(grown, PartitionEnds({}, {})) == []
    left = topic(created_from={3: CreatedFrom(1, 0)})
    assert waits_of_topic(left, PartitionEnds({(1, 0): 3}, {})) == [PartitionWait(3, 0, 1, 3)]
