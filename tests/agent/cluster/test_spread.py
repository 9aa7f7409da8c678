"""Leaders dealt by topic: even, stable, and the same in every release. Planted bugs break one of these."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.cluster import routing
from headrace.agent.cluster import spread as dealing
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.spread import AGENTS_MAX, REGISTERED_MAX, TENTHS, is_covered, spread_steps
from headrace.metastore.api.agents import CHOSEN_FEATURES, LEADER_SPREAD, FeatureRange
from headrace.metastore.keys import partition_key
from headrace.metastore.log.image import AgentImage, Assignment, MetadataImage, TopicImage
from tests.seeds import examples

SHARDS = 16
Deal = Callable[[int, int, tuple[int, ...], tuple[int, ...]], tuple[int, ...]]
node_ids = st.sets(st.integers(0, 10_000), min_size=1, max_size=AGENTS_MAX).map(lambda ids: tuple(sorted(ids)))
topics = st.integers(0, 1 << 38)


def spread(topic: int, count: int, registered: tuple[int, ...], live: tuple[int, ...]) -> tuple[int, ...]:
    """Return what the steps find, without a pause."""
    steps = spread_steps(topic, count, registered, live)
    while True:
        try:
            assert 0 <= next(steps) <= dealing.BLOCK * len(registered)
        except StopIteration as done:
            return tuple(done.value)


def is_even(leaders: tuple[int, ...], live: tuple[int, ...]) -> bool:
    counts = Counter(leaders)
    shares = [counts[node_id] for node_id in live]
    return sum(shares) == len(leaders) and max(shares) - min(shares) <= 1


@settings(max_examples=examples(150), deadline=None)
@given(topics, st.integers(0, 300), node_ids, st.data())
def test_leaders_differ_by_at_most_one(topic: int, count: int, nodes: tuple[int, ...], data: st.DataObject) -> None:
    live = tuple(sorted(data.draw(st.sets(st.sampled_from(nodes), min_size=1))))
    assert is_even(spread(topic, count, nodes, live), live)


@settings(max_examples=examples(100), deadline=None)
@given(topics, st.integers(1, 300), node_ids.filter(lambda ids: len(ids) > 1), st.data())
def test_only_the_partitions_of_one_that_goes_move(
    topic: int, count: int, nodes: tuple[int, ...], data: st.DataObject
) -> None:
    """At most 1/n of the partitions, and one."""
    gone = data.draw(st.sampled_from(nodes))
    before, after = spread(topic, count, nodes, nodes), spread(topic, count, nodes, _without(nodes, gone))
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) <= {gone}
    assert len(moved) <= count / len(nodes) + 1


def _without(nodes: tuple[int, ...], gone: int) -> tuple[int, ...]:
    return tuple(node_id for node_id in nodes if node_id != gone)


@pytest.mark.parametrize(("count", "agents"), [(1, 4), (6, 12), (12, 2), (12, 3), (12, 4), (12, 8), (24, 4)])
def test_few_move_when_the_registration_ends_or_an_agent_is_added(count: int, agents: int) -> None:
    """Summed over topics about 1/n of the leaders, and one per topic."""
    nodes, moved = tuple(range(1, agents + 1)), 0
    for topic in range(300):
        gone = nodes[topic % agents]
        left = _without(nodes, gone)
        before, after = spread(topic, count, nodes, left), spread(topic, count, left, left)
        moved += sum(old != new for old, new in zip(before, after, strict=True))
    assert moved <= 1.05 * 300 * (count / agents + 1)


@pytest.mark.requirement("W15")
@pytest.mark.parametrize("agents", [2, 4, 7, 12])
def test_a_thousand_topics_are_balanced(agents: int) -> None:
    nodes = tuple(range(1, agents + 1))
    shares = Counter(leader for topic in range(1_000) for leader in spread(7 * topic, 1 + topic % 16, nodes, nodes))
    assert max(shares.values()) < 1.05 * shares.total() / agents
    assert min(shares.values()) > 0.95 * shares.total() / agents


def test_the_numbers_never_change() -> None:
    # Agents of different releases must agree: these may never change.
    assert spread(42, 12, (1, 2, 3, 4), (1, 2, 3, 4)) == FROZEN
    assert spread(42, 12, (1, 2, 3, 4), (1, 2, 4)) == FROZEN_WITHOUT_3
    assert [is_covered(number, 3) for number in range(12)] == FROZEN_COVERED


FROZEN = (1, 4, 2, 4, 3, 1, 4, 2, 1, 2, 3, 3)
FROZEN_WITHOUT_3 = (1, 4, 2, 4, 1, 1, 4, 2, 1, 2, 4, 2)
FROZEN_COVERED = [False, False, False, True, False, False, True, False, False, False, True, False]


def test_each_level_covers_a_tenth_more() -> None:
    covered = [{number for number in range(5_000) if is_covered(number, level)} for level in range(TENTHS + 1)]
    assert (len(covered[0]), len(covered[TENTHS])) == (0, 5_000)
    for below, above in itertools.pairwise(covered):
        assert below < above
        assert 400 < len(above - below) < 600
    assert CHOSEN_FEATURES[LEADER_SPREAD] == FeatureRange(1, TENTHS)


# -- in the image


def agent(node_id: int, rack: str | None = None, *, fenced: bool = False, hidden: bool = False) -> AgentImage:
    made = AgentImage(node_id, node_id, uuid.UUID(int=node_id), f"host-{node_id}", 9092, rack, fenced)
    return AgentImage(**{name: getattr(made, name) for name in made.__slots__} | {"hidden": hidden})


def topic_image(number: int, partitions: int, **more: object) -> TopicImage:
    fields = {"topic_id": uuid.UUID(int=number), "topic_number": number, "name": f"t{number}"}
    counts = {"initial_partition_count": partitions, "undeleted_partition_count": partitions}
    return TopicImage(**fields, **counts, leader_epochs=(0,) * partitions, **more)  # type: ignore[arg-type]


def routes(*agents: AgentImage, topics: tuple[TopicImage, ...], level: int = TENTHS) -> Routes:
    features = {LEADER_SPREAD: FeatureRange(1, level)} if level else {}
    image = MetadataImage(
        agents=MappingProxyType({a.node_id: a for a in agents}),
        topics_by_number=MappingProxyType({topic.topic_number: topic for topic in topics}),
        features=MappingProxyType(features),
    )
    return Routes(image, SHARDS)


def led(chosen: Routes, topic: TopicImage, zone: str | None = None) -> list[int]:
    found = [chosen.leader(partition_key(topic.topic_number, index), zone) for index in topic.indexes]
    return [leader.node_id for leader in found if leader is not None]


def test_each_zone_has_its_own_even_leaders() -> None:
    topic = topic_image(5, 12)
    chosen = routes(*(agent(n, "ab"[n % 2]) for n in range(8)), topics=(topic,))
    for zone, nodes in (("a", {0, 2, 4, 6}), ("b", {1, 3, 5, 7})):
        assert Counter(led(chosen, topic, zone)) == dict.fromkeys(nodes, 3)
    assert set(Counter(led(chosen, topic, "elsewhere")).values()) == {1, 2}


@pytest.mark.parametrize("how", ["fenced", "hidden"])
def test_hidden_and_fenced_agents_lead_nothing_and_keep_their_place(how: str) -> None:
    topic = topic_image(5, 12)
    before = led(routes(*(agent(n) for n in range(4)), topics=(topic,)), topic)
    after = led(routes(*(agent(n, **{how: n == 2}) for n in range(4)), topics=(topic,)), topic)  # type: ignore[arg-type]
    assert Counter(after) == {0: 4, 1: 4, 3: 4}
    assert [new for old, new in zip(before, after, strict=True) if old != 2] == [old for old in before if old != 2]


def test_a_preferred_agent_leads_and_moves_no_other_partition() -> None:
    plain = topic_image(5, 12)
    pinned = topic_image(5, 12, assignments=MappingProxyType({1: Assignment((3, 0)), 2: Assignment((9,))}))
    agents = [agent(n) for n in range(4)]
    before, after = led(routes(*agents, topics=(plain,)), plain), led(routes(*agents, topics=(pinned,)), pinned)
    assert after[1] == 3
    assert after[:1] + after[2:] == before[:1] + before[2:], "9 is no agent"


def test_partitions_that_are_gone_take_no_share() -> None:
    topic = topic_image(5, 14, removed=frozenset({3, 9}))
    assert set(Counter(led(routes(*(agent(n) for n in range(4)), topics=(topic,)), topic)).values()) == {3}


@pytest.mark.parametrize(("agents", "is_spread"), [(AGENTS_MAX, True), (AGENTS_MAX + 1, False)])
def test_a_large_zone_is_led_by_commit_shards(agents: int, is_spread: bool) -> None:
    topic = topic_image(5, 4 * SHARDS)
    nodes = [agent(n) for n in range(agents)]
    spread_out, by_shard = (led(routes(*nodes, topics=(topic,), level=n), topic) for n in (TENTHS, 0))
    assert (spread_out != by_shard) == is_spread


def test_many_registrations_of_the_past_do_not_count() -> None:
    topic = topic_image(5, 12)
    past = [agent(100 + n, fenced=True) for n in range(REGISTERED_MAX)]
    live = [agent(n) for n in range(4)]
    assert led(routes(*live, *past, topics=(topic,)), topic) == led(routes(*live, topics=(topic,)), topic)


def test_a_level_moves_the_topics_that_it_covers() -> None:
    topics = tuple(topic_image(number, 12) for number in range(200))
    agents = [agent(n) for n in range(4)]
    before = routes(*agents, topics=topics, level=0)
    for level in (1, 5, TENTHS):
        after = routes(*agents, topics=topics, level=level)
        moved = {topic.topic_number for topic in topics if led(before, topic) != led(after, topic)}
        assert moved <= {number for number in range(200) if is_covered(number, level)}
        assert len(moved) > 200 * level / TENTHS / 2


def test_a_new_image_deals_only_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look-up deals one topic; a new image deals it again only if its partitions or the agents changed."""
    dealt: list[int] = []

    def counted(number: int, *given: Any) -> Any:
        dealt.append(number)
        return spread_steps(number, *given)

    monkeypatch.setattr(routing, "spread_steps", counted)
    topics = tuple(topic_image(number, 12) for number in range(50))
    first = routes(*(agent(n) for n in range(4)), topics=topics)
    expected = [led(first, topic) for topic in topics[:3]]
    assert dealt == [0, 1, 2]
    grown = (topic_image(0, 13), *topics[1:])
    second = Routes(routes(*(agent(n) for n in range(4)), topics=grown).image, SHARDS, first)
    assert [led(second, topic) for topic in grown[1:3]] == expected[1:]
    assert len(led(second, grown[0])) == 13
    assert dealt == [0, 1, 2, 0]
    third = Routes(routes(*(agent(n) for n in range(5)), topics=grown).image, SHARDS, second)
    assert set(led(third, grown[1])) == set(range(5))
    assert dealt == [0, 1, 2, 0, 1]
    last = Routes(routes(agent(1), topics=()).image, SHARDS, third)
    assert not last._dealt_before, "what is gone is forgotten"


# -- planted bugs


def _by_live_only(topic: int, count: int, registered: tuple[int, ...], live: tuple[int, ...]) -> tuple[int, ...]:
    return spread(topic, count, live, live)


def _heirs_by_score(topic: int, count: int, registered: tuple[int, ...], live: tuple[int, ...]) -> tuple[int, ...]:
    seeds = dealing._seeds(topic, registered)
    dealt = spread(topic, count, registered, registered)
    return tuple(
        leader if leader in live else min(live, key=lambda n: dealing._score(seeds[n], index))
        for index, leader in enumerate(dealt)
    )


def _quotas_by_block(topic: int, count: int, registered: tuple[int, ...], live: tuple[int, ...]) -> tuple[int, ...]:
    """Only each block is even."""
    blocks = [min(dealing.BLOCK, count - first) for first in range(0, count, dealing.BLOCK)]
    return tuple(leader for size in blocks for leader in spread(topic, size, registered, live))


@pytest.mark.parametrize("bug", [_by_live_only, _heirs_by_score, _quotas_by_block])
def test_planted_bugs_are_found(bug: Deal) -> None:
    nodes, found = (1, 2, 3, 4, 5, 6, 7), False
    for topic in range(40):
        for count in (12, 300):
            live = _without(nodes, nodes[topic % 7])
            before, after = bug(topic, count, nodes, nodes), bug(topic, count, nodes, live)
            moved = {old for old, new in zip(before, after, strict=True) if old != new}
            found |= not is_even(before, nodes) or not is_even(after, live) or not moved <= set(nodes) - set(live)
    assert found
