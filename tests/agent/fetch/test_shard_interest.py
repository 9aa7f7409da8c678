"""Why an agent follows a commit shard, rule by rule, and that reading much once is no reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agent.fetch.index.shard_interest import SEEN_MAX, FollowPolicy, FollowReason, ShardInterest
from headrace.metastore.keys import commit_shard, partition_key

SHARDS = 8
POLICY = FollowPolicy(again_s=30.0, read_s=60.0, wait_s=2.0, commit_s=60.0, handover_s=300.0)


def key(index: int) -> int:
    return partition_key(SHARDS, index)


def interest() -> ShardInterest:
    return ShardInterest(POLICY, SHARDS)


@pytest.fixture
def one() -> ShardInterest:
    return interest()


def test_a_partition_that_is_read_once_is_no_reason(one: ShardInterest) -> None:
    assert one.read([key(3)], 0.0) == []
    assert one.wanted(0.0) == set()


def test_ten_thousand_partitions_that_are_read_once_are_no_reason_and_are_not_remembered(one: ShardInterest) -> None:
    for n in range(10_000):
        assert one.read([key(n)], n / 100) == []
    assert one.wanted(100.0) == set()
    assert sum(map(len, one._seen.values())) <= SHARDS * SEEN_MAX
    one.forget_past(200.0)
    assert one._seen == {}


def test_a_client_that_comes_back_is_a_reason_for_a_while(one: ShardInterest) -> None:
    one.read([key(3)], 0.0)
    assert one.read([key(3)], 29.0) == [3]
    assert one.wanted(88.0) == {3}
    assert one.wanted(89.0) == set()


def test_a_client_that_comes_back_too_late_begins_again(one: ShardInterest) -> None:
    one.read([key(3)], 0.0)
    assert one.read([key(3)], 31.0) == []
    assert one.read([key(3)], 32.0) == [3]


def test_one_that_goes_on_reading_is_a_reason_without_end(one: ShardInterest) -> None:
    for second in range(2, 1_000, 20):
        one.read([key(n) for n in range(0, 400, SHARDS)], float(second))
        assert second < 20 or one.wanted(float(second)) == {0}


def test_readers_that_come_back_are_noticed_among_many_partitions(one: ShardInterest) -> None:
    """Of a shard that a consumer reads with 1,000 partitions, only some are remembered, and that is enough."""
    keys = [key(n) for n in range(1_000 * SHARDS)]
    one.read(keys, 0.0)
    assert set(one.read(keys, 1.0)) == set(range(SHARDS))


def test_a_wait_is_a_reason_until_shortly_after(one: ShardInterest) -> None:
    assert one.wait([key(3), key(11)], 0.0) == {3}
    assert one.wanted(1.9) == {3}
    assert one.wanted(2.0) == set()


def test_a_wait_does_not_shorten_the_interest_of_a_client_that_comes_back(one: ShardInterest) -> None:
    one.read([key(3)], 0.0)
    one.read([key(3)], 1.0)
    one.wait([key(3)], 2.0)
    assert one.wanted(60.9) == {3}


def test_a_commit_is_a_reason_while_it_is_under_way_and_for_a_while_after(one: ShardInterest) -> None:
    keys = [key(3)]
    call = keys.copy
    assert one.committed(keys, 0.0) == {3}
    one.begin_commit(call)
    assert one.wanted(1_000.0) == {3}
    one.end_commit(call)
    assert one.wanted(1_000.0) == set()
    one.committed(keys, 1_000.0)
    assert one.wanted(1_059.9) == {3}
    assert one.wanted(1_060.0) == set()


def test_what_is_assigned_to_another_agent_is_followed_until_that_one_has_some_past(one: ShardInterest) -> None:
    one.assign(frozenset({1, 2}), 0.0)
    assert one.wanted(1_000.0) == {1, 2}
    one.assign(frozenset({2, 5}), 1_000.0)
    assert one.wanted(1_299.9) == {1, 2, 5}
    assert one.wanted(1_300.0) == {2, 5}
    one.forget_past(1_300.0)
    assert one.wanted_for(FollowReason.ASSIGNED, 1_300.0) == {2, 5}


@given(
    keys=st.lists(st.integers(0, 63), min_size=1, max_size=8),
    counts=st.lists(st.sampled_from([4, 8, 16, 32]), min_size=1, max_size=3),
)
def test_reasons_go_where_the_partitions_go(keys: list[int], counts: list[int]) -> None:
    one = interest()
    written = [key(n) for n in keys]
    one.wait(written, 0.0)
    one.begin_commit(written.copy)
    one.committed(written, 0.0)
    one.assign(frozenset(commit_shard(each, SHARDS) for each in written), 0.0)
    for shards in counts:
        one.resize(shards, 0.0)
        now = {commit_shard(each, shards) for each in written}
        for reason in FollowReason:
            assert now <= one.wanted_for(reason, 1.0) <= set(range(shards))
