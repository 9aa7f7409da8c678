"""Rendezvous hashing: only the share of a lost agent moves, and zones keep to themselves."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.cluster.routing import Routes, group_role, preferred, score
from headrace.agent.cluster.zone import zone_of
from headrace.metastore.api.agents import LEADER_SPREAD, FeatureRange
from headrace.metastore.keys import partition_key
from headrace.metastore.log.image import AgentImage, Assignment, MetadataImage, TopicImage
from tests.seeds import examples

SHARDS = 16


def agent(node_id: int, rack: str | None = None, *, fenced: bool = False) -> AgentImage:
    return AgentImage(node_id, node_id, uuid.UUID(int=node_id), f"host-{node_id}", 9092, rack, fenced)


def routes(*agents: AgentImage) -> Routes:
    return Routes(MetadataImage(agents=MappingProxyType({a.node_id: a for a in agents})), SHARDS)


node_ids = st.sets(st.integers(0, 10_000), min_size=2, max_size=12)


@settings(max_examples=examples(60))
@given(node_ids, st.data())
def test_only_the_share_of_a_lost_agent_moves(nodes: set[int], data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(sorted(nodes)))
    before, after = routes(*map(agent, nodes)), routes(*map(agent, nodes - {lost}))
    for shard in range(SHARDS):
        key = partition_key(7, shard)
        leader, successor = before.leader(key), after.leader(key)
        assert leader is not None
        assert successor is not None
        assert successor == leader or leader.node_id == lost
    for number in range(50):
        owner, heir = before.coordinator(f"g{number}"), after.coordinator(f"g{number}")
        assert owner is not None
        assert heir == owner or owner.node_id == lost


def test_the_hash_never_changes() -> None:
    # Agents of different releases must agree: these numbers (of b2sum -l 64) may never change.
    assert score(1, "shard:0") == 0x3866A5D7CF9A182E
    assert score(2, group_role("orders")) == 0x32F9004E8615C835


def test_shards_and_groups_spread_over_all_agents() -> None:
    cluster = [agent(n) for n in range(4)]
    owners = [preferred(f"group:g{number}", cluster) for number in range(2_000)]
    shares = [sum(owner is a for owner in owners) for a in cluster]
    assert min(shares) > 400


def test_fenced_agents_lead_nothing() -> None:
    live = routes(agent(1, fenced=True), agent(2))
    assert all(live.leader(partition_key(3, p)) == agent(2) for p in range(SHARDS))
    assert routes(agent(1, fenced=True)).leader(partition_key(3, 0)) is None
    assert routes().coordinator("g") is None


def test_partitions_of_one_shard_share_a_leader() -> None:
    cluster = routes(*(agent(n) for n in range(5)))
    assert cluster.leader(partition_key(1, 0)) == cluster.leader(partition_key(0, 1))
    assert cluster.leader(partition_key(1, 0)) == cluster.leader(partition_key(1, SHARDS))


@pytest.mark.requirement("W15")
@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8))
def test_a_zone_with_a_live_agent_keeps_its_clients(racks: list[str | None]) -> None:
    cluster = routes(*(agent(n, rack) for n, rack in enumerate(racks)))
    for zone in ("a", "b", "c"):
        for shard in range(SHARDS):
            leader = cluster.leader(partition_key(0, shard), zone)
            assert leader is not None
            if zone in racks:
                assert leader.rack == zone
            else:
                assert leader == cluster.leader(partition_key(0, shard))


def pinned(*agents: AgentImage, replicas: tuple[int, ...], adding: tuple[int, ...] = ()) -> Routes:
    """One topic, number 5, with partition 1 reassigned to `replicas`."""
    topic = TopicImage(uuid.UUID(int=5), 5, "t", 3, 3, (0, 0, 0), {1: Assignment(replicas, adding)})
    image = MetadataImage(
        agents=MappingProxyType({a.node_id: a for a in agents}), topics_by_number=MappingProxyType({5: topic})
    )
    return Routes(image, SHARDS)


@pytest.mark.requirement("C9")
@settings(max_examples=examples(40))
@given(st.permutations(range(6)), st.sets(st.integers(0, 5), max_size=5))
def test_a_reassignment_pins_its_first_live_agent_and_no_other_partition(order: list[int], fenced: set[int]) -> None:
    agents = [agent(n, fenced=n in fenced) for n in range(6)]
    chosen, plain = pinned(*agents, replicas=tuple(order[:3])), routes(*agents)
    live = [n for n in order[:3] if n not in fenced]
    leader = chosen.leader(partition_key(5, 1))
    if live:
        assert leader == agents[live[0]]
    else:
        assert leader == plain.leader(partition_key(5, 1))
    for index in (0, 2):
        assert chosen.leader(partition_key(5, index)) == plain.leader(partition_key(5, index))


@pytest.mark.requirement("C9")
def test_an_agent_that_is_being_added_does_not_lead_yet() -> None:
    key = partition_key(5, 1)
    assert pinned(agent(1), agent(2), replicas=(2, 1), adding=(2,)).leader(key) == agent(1)
    assert pinned(agent(1), agent(2), replicas=(2, 1)).leader(key) == agent(2)


@pytest.mark.requirement("C9")
def test_the_clients_zone_comes_before_the_pin() -> None:
    agents = agent(1, "a"), agent(2, "a"), agent(3, "b")
    key = partition_key(5, 1)
    there = pinned(*agents, replicas=(3, 2))
    assert there.leader(key) == agent(3, "b")
    assert there.leader(key, "a") == agent(2, "a")
    assert there.leader(key, "nobody-lives-here") == agent(3, "b")
    assert pinned(*agents, replicas=(1,)).leader(key, "b") == agent(3, "b")


@pytest.mark.requirement("W15")
@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("orders,zone=eu-1a", "eu-1a"),
        ("zone=eu-1b", "eu-1b"),
        ("orders, zone=eu-1a ,x=y", "eu-1a"),
        ("zone=a,zone=b", "a"),
        ("timezone=utc", None),
        ("orders,zone=", None),
        ("", None),
        (None, None),
    ],
)
def test_the_zone_in_a_client_id(client_id: str | None, zone: str | None) -> None:
    assert zone_of(client_id) == zone


# -- routes that are made from those of the image before

racks = st.sampled_from(["a", "b", None])
clusters = st.dictionaries(st.integers(1, 6), st.tuples(racks, st.booleans()), max_size=6)
histories = st.lists(st.tuples(clusters, st.integers(1, 5), st.sampled_from([0, 5, 10])), min_size=2, max_size=5)


def an_image(held: dict[int, tuple[str | None, bool]], count: int, level: int) -> MetadataImage:
    agents = {node_id: agent(node_id, rack, fenced=fenced) for node_id, (rack, fenced) in held.items()}
    found = {
        number: TopicImage(
            uuid.UUID(int=number), number, f"t{number}", count, count, (0,) * count, {0: Assignment((number,))}
        )
        for number in range(3)
    }
    features = {LEADER_SPREAD: FeatureRange(1, level)} if level else {}
    return MetadataImage(
        agents=MappingProxyType(agents), topics_by_number=MappingProxyType(found), features=MappingProxyType(features)
    )


@settings(max_examples=examples(150))
@given(histories, st.randoms(use_true_random=False))
def test_routes_of_a_chain_of_images_decide_as_if_they_were_made_alone(
    history: list[tuple[dict[int, tuple[str | None, bool]], int, int]], rng: random.Random
) -> None:
    """Also those of the images before, which answers that are under way still use."""
    made: list[Routes] = []
    for held, count, level in history:
        image = an_image(held, count, level)
        if made and rng.random() < 0.3:
            image = replace(image, agents=made[-1].image.agents)
        made.append(Routes(image, SHARDS, made[-1] if made else None))
        for each in made[-2:]:
            alone = Routes(each.image, SHARDS)
            zone = rng.choice(["a", "b", "elsewhere", None])
            topic = each.image.topics_by_number[rng.randrange(3)]
            if rng.random() < 0.5:
                assert all(cost > 0 for cost in each.steps(topic, zone))
                assert not list(each.steps(topic, zone)), "nothing is left to compute"
            keys = [partition_key(topic.topic_number, index) for index in topic.indexes]
            expected = [alone.leader(key, zone) for key in keys]
            assert [each.leader(key, zone) for key in keys] == expected
            assert list(each.leaders(topic, zone)) == expected
            assert each.coordinator("g") == alone.coordinator("g")
            assert each.controller() == preferred("controller", each.image.live_agents())


def test_the_same_agents_are_not_looked_at_again() -> None:
    first = routes(*(agent(n) for n in range(5)))
    second = Routes(replace(first.image, offset=7), SHARDS, first)
    assert second.live_agents is first.live_agents
