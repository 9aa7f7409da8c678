"""Each change is one transaction from one complete state to another: counts, epochs, marks, removals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metastore.partitions.changes import (
    COUNT_MAX,
    Expansion,
    Removal,
    Shrinking,
    apply_change,
    change_count,
    removals,
)
from headrace.metastore.partitions.placement import ancestors, nearest
from headrace.metastore.partitions.topic_partitions import CreatedFrom, OrderedPartition, TopicPartitions
from headrace.storage.errors import InvalidError


def _to(topic: TopicPartitions, count: int) -> TopicPartitions:
    change = change_count(topic, count)
    assert change is not None
    return apply_change(topic, change)


def _emptied(topic: TopicPartitions) -> TopicPartitions:
    for removal in removals(topic, topic.marked):
        topic = apply_change(topic, removal)
    return topic


def test_an_expansion_raises_all_epochs_and_remembers_those_before() -> None:
    topic = TopicPartitions.created(8, leader_epoch=5)
    change = change_count(topic, 13)
    assert change == Expansion(
        13,
        dict.fromkeys(range(8), 6),
        {8 + index: OrderedPartition(5, CreatedFrom(index, 5)) for index in range(5)},
    )
    grown = apply_change(topic, change)
    assert (grown.initial, grown.undeleted, grown.marked) == (8, 13, ())
    assert [each.leader_epoch for each in grown.partitions] == [6] * 8 + [5] * 5
    assert topic.undeleted == 8, "the state before is unchanged"


def test_if_the_parent_is_as_new_a_partition_waits_for_the_one_that_had_its_keys() -> None:
    grown = _to(TopicPartitions.created(1), 8)
    assert {index: grown.source(index) for index in range(8)} == {0: None} | dict.fromkeys(range(1, 8), 0)
    again = _to(_to(TopicPartitions.created(1), 3), 8)
    assert [again.source(index) for index in range(8)] == [None, 0, 0, 1, 0, 1, 2, 1]


def test_shrinking_marks_with_the_epochs_of_all_ancestors() -> None:
    grown = _to(TopicPartitions.created(2, leader_epoch=1), 8)
    change = change_count(grown, 5)
    assert change == Shrinking(
        5, {0: 3, 1: 3} | dict.fromkeys(range(2, 8), 2), {5: {1: 2}, 6: {2: 1, 0: 2}, 7: {3: 1, 1: 2}}
    )
    shrunk = apply_change(grown, change)
    assert shrunk.marked == (5, 6, 7)
    further = _to(shrunk, 2)
    assert further.marked == (2, 3, 4, 5, 6, 7)
    assert further.partitions[6].before_deletion == {2: 1, 0: 2}, "the first marking counts"
    assert further.partitions[2].before_deletion == {0: 3}


def test_what_is_refused() -> None:
    grown = _to(TopicPartitions.created(8), 13)
    assert change_count(grown, 13) is None
    with pytest.raises(InvalidError, match="fewer partitions than the topic was created with: count=7 initial=8"):
        change_count(grown, 7)
    with pytest.raises(InvalidError, match="too many partitions"):
        change_count(grown, COUNT_MAX + 1)
    marked = _to(grown, 9)
    for count in (10, 13, 14):
        with pytest.raises(InvalidError, match="no growth while partitions are to be deleted: marked=9, 10, 11, 12;"):
            change_count(marked, count)
    assert change_count(_emptied(marked), 10) is not None


def test_a_partition_goes_after_those_that_were_split_off_it() -> None:
    marked = _to(_to(_to(TopicPartitions.created(1), 2), 4), 1)
    assert [marked.source(index) for index in range(4)] == [None, 0, 0, 1]
    assert removals(marked, {1, 2}) == [Removal(2)], "3 waits for 1"
    assert removals(marked, {1, 2, 3}) == [Removal(3), Removal(2), Removal(1)]
    assert removals(marked, {0}) == [], "not marked"
    some = apply_change(marked, Removal(3))
    assert some.marked == (1, 2), "a hole"
    assert removals(some, {1}) == [Removal(1)]
    assert _emptied(some).marked == ()


def test_a_partition_that_returns_continues_its_epochs() -> None:
    """8, 13, 9, 13."""
    topic = TopicPartitions.created(8)
    grown = _to(topic, 13)
    removed = _emptied(_to(grown, 9))
    assert removed.partitions[12] == OrderedPartition(grown.partitions[12].leader_epoch + 1, is_removed=True)
    back = _to(removed, 13)
    for index in range(9, 13):
        assert back.partitions[index].leader_epoch > removed.partitions[index].leader_epoch
        assert back.partitions[index].created_from == CreatedFrom(index - 8, removed.partitions[index - 8].leader_epoch)
        assert not back.partitions[index].before_deletion
        assert not back.partitions[index].is_removed


Steps = st.lists(st.one_of(st.integers(1, 60), st.just(None)), max_size=30)
"""Counts to change to; None: all marked partitions are emptied."""


@given(st.integers(1, 10), Steps)
def test_after_any_changes_readers_know_what_to_wait_for(initial: int, steps: list[int | None]) -> None:
    topic = TopicPartitions.created(initial, 3)
    for step in steps:
        before = topic
        if step is None:
            topic = _emptied(topic)
        else:
            try:
                change = change_count(topic, step)
            except InvalidError:
                assert step < initial or (step > topic.undeleted and topic.marked)
                continue
            topic = topic if change is None else apply_change(topic, change)
        _check(before, topic)


def _check(before: TopicPartitions, topic: TopicPartitions) -> None:
    assert (topic.initial, topic.undeleted >= topic.initial) == (before.initial, True)
    for old, new in zip(before.partitions, topic.partitions, strict=False):
        assert new.leader_epoch >= old.leader_epoch
    if topic.undeleted != before.undeleted:
        taking = min(before.undeleted, topic.undeleted)
        risen = zip(before.partitions[:taking], topic.partitions[:taking], strict=True)
        assert all(new.leader_epoch == old.leader_epoch + 1 for old, new in risen)
    for index in (*range(topic.undeleted), *topic.marked):
        partition = topic.partitions[index]
        if index < topic.initial:
            assert partition.created_from is None
        elif index >= before.undeleted and index < topic.undeleted:
            assert partition.created_from is not None
            assert partition.created_from.source == nearest(index, topic.initial, before.undeleted)
        if partition.created_from is not None:
            source = topic.partitions[partition.created_from.source]
            assert not source.is_removed
            assert partition.created_from.leader_epoch < source.leader_epoch
        marked = index >= topic.undeleted
        assert set(partition.before_deletion) == (set(ancestors(index, topic.initial)) if marked else set())
        for above, epoch in partition.before_deletion.items():
            assert epoch < topic.partitions[above].leader_epoch or topic.partitions[above].is_removed
