"""The followers of commit shards by hash: enough of them, in several zones, few moves, and the same in each release."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agent.fetch.index.shard_interest import FOLLOWERS, assigned_shards, shard_followers

SHARDS = 16
Zones = Mapping[int, str | None]
AGENTS = st.dictionaries(st.integers(0, 1_000), st.sampled_from([None, "a", "b", "c", "d"]), min_size=1, max_size=12)


def followers(zones: Zones, shards: int = SHARDS) -> list[set[int]]:
    return [set(row) for row in shard_followers(zones, shards).tolist()]


@given(zones=AGENTS)
def test_each_shard_has_enough_live_agents(zones: Zones) -> None:
    for chosen in followers(zones):
        assert len(chosen) == min(FOLLOWERS, len(zones))
        assert chosen <= zones.keys()


@given(zones=AGENTS)
def test_each_shard_has_followers_in_as_many_zones_as_possible(zones: Zones) -> None:
    for chosen in followers(zones):
        assert len({zones[node] for node in chosen}) == min(FOLLOWERS, len(set(zones.values())))


@given(zones=AGENTS)
def test_the_agents_assign_themselves_what_the_rows_say(zones: Zones) -> None:
    chosen = followers(zones)
    for node in zones:
        assert assigned_shards(node, zones, SHARDS) == {shard for shard in range(SHARDS) if node in chosen[shard]}


@given(zones=AGENTS, gone=st.data())
def test_an_agent_that_goes_or_comes_changes_one_follower_besides_itself(zones: Zones, gone: st.DataObject) -> None:
    node = gone.draw(st.sampled_from(sorted(zones)))
    others = {each: zone for each, zone in zones.items() if each != node}
    if not others:
        return
    for before, after in zip(followers(zones), followers(others), strict=True):
        if node in before:
            assert len(before - after) <= 2, "itself, and one that makes room for another zone"
        else:
            assert before == after


def test_followers_are_spread_evenly() -> None:
    zones = {node: "abc"[node % 3] for node in range(75)}
    counts = [len(assigned_shards(node, zones, 128)) for node in zones]
    assert sum(counts) == 128 * FOLLOWERS
    assert max(counts) <= 4 * sum(counts) / len(counts)


def test_an_agent_that_is_not_among_them_follows_nothing() -> None:
    assert assigned_shards(-1, {1: None, 2: None}, 4) == frozenset()


def test_the_choice_is_the_same_in_every_release() -> None:
    """Agents of different releases must agree: never change these numbers."""
    zones = {1: "a", 2: "a", 3: "b", 4: "b", 5: None}
    assert shard_followers(zones, 4).tolist() == FROZEN


FROZEN = [[1, 3, 5], [3, 1, 5], [3, 5, 1], [3, 1, 5]]


@pytest.mark.slow
def test_the_largest_cluster_is_assigned_in_a_moment() -> None:
    zones = {node: "abc"[node % 3] for node in range(1_000)}
    began = time.process_time()
    assigned_shards(7, zones, 1_024)
    print(f"cpu_seconds={time.process_time() - began:.3f}")
