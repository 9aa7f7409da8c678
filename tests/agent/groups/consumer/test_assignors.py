"""The server-side assignors: everything is assigned once, evenly, and little moves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agent.groups.consumer.assignors import (
    Assignor,
    Subscriber,
    assign_apart,
    assign_ranges,
    assign_uniformly,
    partitions_of,
)
from headrace.agent.groups.members.member import Partitions
from headrace.metastore.keys import partition_key, split_partition_key

TOPICS = st.dictionaries(st.integers(1, 5), st.integers(0, 7), max_size=4)
SUBSCRIPTIONS = st.lists(st.frozensets(st.integers(1, 6)), min_size=1, max_size=6)
BOTH = pytest.mark.parametrize("assign", [assign_uniformly, assign_ranges])


def members_of(
    subscriptions: Sequence[frozenset[int]], had: Mapping[str, Partitions] | None = None
) -> list[Subscriber]:
    had = had or {}
    return [Subscriber(f"m{i}", None, topics, had.get(f"m{i}", frozenset())) for i, topics in enumerate(subscriptions)]


def check_sound(members: Sequence[Subscriber], topics: Mapping[int, int], given_to: Mapping[str, Partitions]) -> None:
    """Every partition with a subscriber has one owner, which subscribes to it."""
    assert given_to.keys() == {member.member_id for member in members}
    owners = Counter(key for partitions in given_to.values() for key in partitions)
    subscribed = frozenset(itertools.chain.from_iterable(member.topics for member in members))
    assert owners == Counter(partitions_of({n: c for n, c in topics.items() if n in subscribed}))
    for member in members:
        assert {split_partition_key(key)[0] for key in given_to[member.member_id]} <= member.topics


def loads(given_to: Mapping[str, Partitions]) -> list[int]:
    return sorted(len(partitions) for partitions in given_to.values())


def moved(before: Mapping[str, Partitions], after: Mapping[str, Partitions]) -> int:
    """Partitions that another member has now."""
    owner = {key: member_id for member_id, partitions in before.items() for key in partitions}
    return sum(owner.get(key, m) != m for m, partitions in after.items() for key in partitions)


@BOTH
@given(topics=TOPICS, subscriptions=SUBSCRIPTIONS, changed=SUBSCRIPTIONS, grown=TOPICS)
def test_every_partition_has_one_subscriber(
    assign: Assignor,
    topics: dict[int, int],
    subscriptions: list[frozenset[int]],
    changed: list[frozenset[int]],
    grown: dict[int, int],
) -> None:
    """From nothing, and from any target before: members, subscriptions and topics may all be others."""
    members = members_of(subscriptions)
    first = assign(members, topics)
    check_sound(members, topics, first)
    later = members_of(changed, first)
    check_sound(later, grown, assign(later, grown))


@BOTH
@given(topics=TOPICS, subscriptions=SUBSCRIPTIONS)
def test_the_order_of_the_members_does_not_matter(
    assign: Assignor, topics: dict[int, int], subscriptions: list[frozenset[int]]
) -> None:
    members = members_of(subscriptions)
    assert loads(assign(members, topics)) == loads(assign(members[::-1], topics))


@given(partitions=st.integers(0, 40), before=st.integers(1, 9), after=st.integers(1, 9))
def test_uniform_moves_no_more_than_it_must(partitions: int, before: int, after: int) -> None:
    """Equal subscriptions: shares differ by one at most; when a member comes only its share moves, when one
    goes only what it had."""
    topics = {1: partitions}
    first = assign_uniformly(members_of([frozenset({1})] * before), topics)
    second = assign_uniformly(members_of([frozenset({1})] * after, first), topics)
    assert loads(second)[-1] - loads(second)[0] <= 1
    stay = min(before, after)
    surplus = sum(max(0, len(first[f"m{i}"]) - -(-partitions // after)) for i in range(stay))
    orphans = sum(len(first[f"m{i}"]) for i in range(stay, before))
    fewest = surplus + orphans
    if after > before:  # newcomers have at least the smaller share, wherever it comes from
        fewest = max(fewest, sum(sorted(len(p) for p in second.values())[: after - before]))
    assert moved(first, second) == fewest


@given(topics=TOPICS, subscriptions=SUBSCRIPTIONS)
def test_uniform_leaves_a_balanced_group_alone(topics: dict[int, int], subscriptions: list[frozenset[int]]) -> None:
    first = assign_uniformly(members_of(subscriptions), topics)
    assert assign_uniformly(members_of(subscriptions, first), topics) == first


@given(
    topics=st.dictionaries(st.integers(1, 3), st.integers(0, 3), max_size=3),
    subscriptions=st.lists(st.frozensets(st.integers(1, 3)), min_size=1, max_size=4),
)
def test_uniform_is_as_even_as_the_subscriptions_allow(
    topics: dict[int, int], subscriptions: list[frozenset[int]]
) -> None:
    """Compared with every possible distribution."""
    members = members_of(subscriptions)
    found = sum(load * load for load in loads(assign_uniformly(members, topics)))
    choices: list[list[int]] = []
    for number, count in topics.items():
        able = [i for i, member in enumerate(members) if number in member.topics]
        choices += [able] * count if able else []
    best = min(sum(n * n for n in Counter(owners).values()) for owners in itertools.product(*choices))
    assert found == best


def test_one_member_more_takes_from_those_who_share_its_topic() -> None:
    """A path, not a single move: m2 can only be relieved by way of m1."""
    topics = {1: 3, 2: 1}
    had = {
        "m0": frozenset(),
        "m1": frozenset({partition_key(2, 0)}),
        "m2": frozenset(partition_key(1, i) for i in range(3)),
    }
    members = members_of([frozenset({2}), frozenset({1, 2}), frozenset({1})], had)
    assigned = assign_uniformly(members, topics)
    assert loads(assigned) == [1, 1, 2]
    assert assigned["m0"] == {partition_key(2, 0)}
    assert assigned["m2"] < had["m2"]


def test_ranges_of_equal_topics_go_to_the_same_members() -> None:
    members = members_of([frozenset({1, 2, 3})] * 3)
    assigned = assign_ranges(members, {1: 7, 2: 7, 3: 2})
    for partitions in assigned.values():
        by_topic = {n: [i for t, i in map(split_partition_key, sorted(partitions)) if t == n] for n in (1, 2, 3)}
        assert by_topic[1] == by_topic[2]
        assert by_topic[1] == list(range(by_topic[1][0], by_topic[1][-1] + 1))
    assert [len(assigned[f"m{i}"]) for i in range(3)] == [7, 5, 4]


def test_a_static_member_keeps_its_range_under_another_member_id() -> None:
    def between(member_id: str) -> list[Subscriber]:
        subscribed = frozenset({1})
        return [
            Subscriber("a", None, subscribed),
            Subscriber(member_id, "i", subscribed),
            Subscriber("z", None, subscribed),
        ]

    assert assign_ranges(between("0"), {1: 9})["0"] == assign_ranges(between("zz"), {1: 9})["zz"]


@pytest.mark.requirement("P7")
@BOTH
@given(
    counts=st.dictionaries(st.integers(1, 3), st.integers(1, 9), min_size=1, max_size=3),
    gaps=st.dictionaries(st.integers(1, 3), st.sets(st.integers(0, 9), min_size=1), max_size=3),
    members=st.integers(1, 5),
)
def test_live_and_marked_partitions_are_spread_separately(
    assign: Assignor, counts: dict[int, int], gaps: dict[int, set[int]], members: int
) -> None:
    """Marked ones are above the count, with gaps where others were removed."""
    marked = {number: [counts[number] + gap for gap in sorted(gaps[number])] for number in counts.keys() & gaps.keys()}
    everyone = members_of([frozenset(counts)] * members)
    given_to = assign_apart(assign, everyone, counts, marked)
    live = {member_id: {key for key in keys if not _is_marked(key, marked)} for member_id, keys in given_to.items()}
    draining = {member_id: keys - live[member_id] for member_id, keys in given_to.items()}
    assert sorted(key for keys in live.values() for key in keys) == partitions_of(counts)
    assert sorted(key for keys in draining.values() for key in keys) == sorted(
        partition_key(number, index) for number, indexes in marked.items() for index in indexes
    )
    if assign is assign_uniformly:
        for part in (live, draining):
            sizes = sorted(map(len, part.values()))
            assert sizes[-1] - sizes[0] <= 1


@pytest.mark.requirement("P7")
def test_a_mark_moves_nothing_that_need_not_move() -> None:
    members = members_of([frozenset({1})] * 3)
    before = assign_apart(assign_uniformly, members, {1: 13}, {})
    after = assign_apart(assign_uniformly, members_of([frozenset({1})] * 3, before), {1: 9}, {1: [9, 10, 11, 12]})
    again = assign_apart(assign_uniformly, members_of([frozenset({1})] * 3, after), {1: 9}, {1: [9, 10, 11, 12]})
    assert again == after
    emptied = assign_apart(assign_uniformly, members_of([frozenset({1})] * 3, after), {1: 9}, {1: [10, 12]})
    assert moved(after, emptied) == 0


def _is_marked(key: int, marked: Mapping[int, Sequence[int]]) -> bool:
    number, index = split_partition_key(key)
    return index in marked.get(number, ())
