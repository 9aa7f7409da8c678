"""What a member waits for, and when it reports its position, in single cases."""

from __future__ import annotations

from headrace.metastore.partitions.topic_partitions import CreatedFrom, OrderedPartition
from headrace.metastore.partitions.waiting import PositionReport, may_begin, may_deliver, must_report


class Known:
    """Epoch 3 of every partition ends at 10, epoch 4 at 20, which is the high watermark."""

    def __init__(self, **positions: int) -> None:
        self._positions = positions

    def reported(self, partition: int) -> int | None:
        return self._positions.get(f"p{partition}")

    def end_of(self, partition: int, leader_epoch: int) -> int:
        return {3: 10, 4: 20}[leader_epoch]

    def high_watermark(self, partition: int) -> int:
        return 20


def test_a_new_partition_waits_until_its_source_is_delivered_up_to_the_change() -> None:
    assert may_begin(None, Known())
    created_from = CreatedFrom(1, 3)
    assert not may_begin(created_from, Known())
    assert not may_begin(created_from, Known(p0=20, p1=9))
    assert may_begin(created_from, Known(p1=10))


def test_an_heir_delivers_what_came_before_the_deletion_and_then_waits() -> None:
    marked = {9: OrderedPartition(5, before_deletion={1: 3}), 10: OrderedPartition(5, before_deletion={2: 3})}
    assert may_deliver(1, 9, marked, Known())
    assert not may_deliver(1, 10, marked, Known())
    assert not may_deliver(1, 10, marked, Known(p9=19, p10=20))
    assert may_deliver(1, 10, marked, Known(p9=20))
    assert may_deliver(0, 15, marked, Known()), "no heir"
    both = {9: marked[9], 17: marked[9]}
    assert not may_deliver(1, 10, both, Known(p9=20))
    assert may_deliver(1, 10, both, Known(p9=20, p17=20))


def test_a_position_is_reported_only_where_it_may_release_a_member() -> None:
    last = PositionReport(8, 3)
    assert must_report(last, None, at_end=False, is_blocked=False), "the first time"
    assert not must_report(PositionReport(9, 3), last, at_end=False, is_blocked=False)
    assert must_report(PositionReport(9, 3), last, at_end=True, is_blocked=False)
    assert must_report(PositionReport(9, 3), last, at_end=False, is_blocked=True)
    assert must_report(PositionReport(9, 4), last, at_end=False, is_blocked=False)
    for at_end, is_blocked in ((True, False), (False, True)):
        assert not must_report(last, last, at_end=at_end, is_blocked=is_blocked), "nothing new"
