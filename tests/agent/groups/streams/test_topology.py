"""Topologies among the topics that there are: counts, what is missing, what is wrong; as Kafka's tests say."""

from __future__ import annotations

import random

import pytest

from headrace.agent.groups.streams import configured_topology
from headrace.agent.groups.streams.configured_topology import (
    ConfiguredTopology,
    InvalidTopologyError,
    StatusCode,
    configure,
)
from headrace.agent.groups.streams.topology import (
    InternalTopic,
    Topology,
    in_kafka_order,
    other_role,
    task_key,
    task_of,
    why_malformed,
)
from tests.agent.groups.streams.streams_world import COUNT, internal, sub, topology

pytestmark = pytest.mark.requirement("X16")


def counted(found: ConfiguredTopology) -> dict[str, int]:
    """Return the missing topics with their counts."""
    return {topic.name: topic.partition_count for topic in found.missing}


def test_internal_topics_have_the_count_of_the_largest_source() -> None:
    found = configure(COUNT, {"words": 5})
    assert counted(found) == {"by-word": 5, "counts": 5}
    assert found.status is not None
    assert found.status.code is StatusCode.MISSING_INTERNAL_TOPICS
    assert found.status.detail.startswith("Internal topics are missing: ")
    assert not found.is_ready
    ready = configure(COUNT, {"words": 5, "by-word": 5, "counts": 5})
    assert ready.is_ready
    assert ready.subtopologies is not None
    assert [(each.task_count, each.is_stateful) for each in ready.subtopologies.values()] == [(5, False), (5, True)]


def test_missing_sources_are_named_and_nothing_is_created() -> None:
    plan = topology(sub("0", [f"t{number}" for number in range(5)], logs=["log"]))
    found = configure(plan, {"t3": 1})
    assert found.status == (
        StatusCode.MISSING_SOURCE_TOPICS,
        "Source topics t0, t1, t2 and 1 additional topics are missing.",
    )
    assert (found.missing, found.subtopologies) == ((), None)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (topology(sub("1", repartition=[internal("r")], sinks=["r"])), "There may be loops"),
        (topology(sub("1", repartition=[internal("r")])), "is never used as a sink topic"),
        (topology(sub("1", logs=["log"])), "No source topics found for subtopology 1"),
        (topology(sub("1", repartition=[internal("r", -1)])), "a count is not positive"),
    ],
)
def test_topologies_that_no_topics_fit(plan: Topology, message: str) -> None:
    with pytest.raises(InvalidTopologyError, match=message):
        configure(plan, {"words": 1})


def test_fixed_counts_are_kept_and_others_follow() -> None:
    plan = topology(
        sub("0", ["s"], sinks=["fixed", "free"]),
        sub("1", repartition=[internal("fixed", 7)], sinks=["last"], logs=["one"]),
        sub("2", repartition=[internal("free"), internal("last")], logs=["two"]),
    )
    assert counted(configure(plan, {"s": 3})) == {"fixed": 7, "free": 3, "last": 7, "one": 7, "two": 7}


@pytest.mark.parametrize(
    ("repartition", "sources", "counts", "expected"),
    [
        ([internal("r")], ["s"], {"s": 3, "big": 9}, {"r": 3, "log": 3}),
        (
            [internal("r", 4)],
            ["s"],
            {"s": 3, "big": 9},
            "[4] of repartition topic [r] doesn't match",
        ),
        ([internal("r")], ["s", "t"], {"s": 3, "t": 2, "big": 9}, "same number of partitions: [{s=3, t=2}]"),
        ([internal("r"), internal("q", 5)], [], {"big": 9}, {"r": 5, "q": 5, "log": 5}),
        ([internal("r", 6), internal("q", 5)], [], {"big": 9}, "same number of partitions: [{q=5, r=6}]"),
        ([internal("r"), internal("q")], [], {"big": 9}, {"r": 9, "q": 9, "log": 9}),
    ],
)
def test_copartitioned_topics_get_one_count(
    repartition: list[InternalTopic], sources: list[str], counts: dict[str, int], expected: dict[str, int] | str
) -> None:
    together = [(tuple(range(len(sources))), tuple(range(len(repartition))))]
    plan = topology(
        sub("0", ["big"], sinks=["r", "q"]),
        sub("1", sources, repartition=repartition, logs=["log"], together=together),
    )
    found = configure(plan, counts)
    if isinstance(expected, str):
        assert found.status is not None
        assert found.status.code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
        assert expected in found.status.detail
    else:
        assert {name: count for name, count in counted(found).items() if name in expected} == expected


def test_an_internal_topic_with_another_count_is_wrong() -> None:
    found = configure(COUNT, {"words": 2, "counts": 3})
    detail = "Existing topic counts has different number of partitions: expected 2, found 3"
    assert found.status == (StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def _in_rounds(plan: Topology, counts: dict[str, int]) -> dict[str, int] | None:
    """Kafka's way to the counts of repartition topics: rounds over all subtopologies. None: they lead nowhere."""
    internal_topics = [topic for one in plan.subtopologies for topic in one.repartition_sources]
    found = {topic.name: topic.partition_count for topic in internal_topics if topic.partition_count}
    while True:
        is_needed = has_progress = False
        for name in in_kafka_order(plan.by_id):
            each = plan.by_id[name]
            known = [found[topic.name] for topic in each.repartition_sources if topic.name in found]
            known += [counts[source] for source in each.source_topics]
            for sink in each.repartition_sinks:
                if sink not in found and known:
                    found[sink], has_progress = max(known), True
                elif sink not in found:
                    is_needed = True
        if not is_needed:
            return found
        if not has_progress:
            return None


def test_counts_are_those_of_kafkas_rounds() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        names = [f"r{number}" for number in range(6)]
        parts = []
        for number in rng.sample(range(30), 7):
            reads = [internal(name, rng.choice([0, 0, 0, 4])) for name in rng.sample(names, rng.randint(0, 2))]
            sources = rng.sample(["s", "t", "u"], rng.randint(0, 1))
            parts.append(sub(str(number), sources, repartition=reads, sinks=rng.sample(names, rng.randint(0, 2))))
        plan, counts = topology(*parts), {"s": 2, "t": 3, "u": 5}
        expected = _in_rounds(plan, counts)
        read = {topic.name for one in parts for topic in one.repartition_sources}
        if expected is None or read - expected.keys():
            with pytest.raises(InvalidTopologyError, match="loops" if expected is None else "never used as a sink"):
                configured_topology._repartition_counts(plan, counts)
        else:
            assert configured_topology._repartition_counts(plan, counts) == expected, seed


def test_a_long_chain_that_is_named_backwards_takes_no_time() -> None:
    """Kafka looks at all subtopologies for each link of the chain."""
    count = 3_000
    parts = [sub("0", ["s"], sinks=["r1"])]
    parts += [sub(str(at), repartition=[internal(f"r{at}")], sinks=[f"r{at + 1}"]) for at in range(1, count)]
    looks = 0

    class Counted(dict[str, int]):
        def __contains__(self, name: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(name)

    found = configure(topology(*reversed(parts)), Counted(s=3))
    assert set(counted(found).values()) == {3}
    assert len(found.missing) == count - 1
    assert looks < 20 * count


def test_more_tasks_than_fit_are_refused() -> None:
    parts = [sub(str(number), ["s"]) for number in range(3)]
    with pytest.raises(InvalidTopologyError, match="more than 20000 tasks"):
        configure(topology(*parts), {"s": 7_000})
    assert configure(topology(*parts[:2]), {"s": 7_000}).is_ready


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (topology(sub("0"), epoch=-1), "non-negative"),
        (topology(sub("0"), sub("0")), "same id"),
        (topology(sub("0", repartition=[internal("r"), internal("r")])), "two repartition source topics"),
        (topology(sub("0", logs=["l", "l"])), "two changelog topics"),
        (topology(sub("0", ["s"], together=[((1,), ())])), "that it has not"),
        (topology(sub("0", ["s"], together=[((0, -1), ())])), "that it has not"),
        (topology(sub("0", repartition=[InternalTopic("r", 0, 0, (("a", "1"), ("a", "2")))])), "set twice"),
    ],
)
def test_malformed_topologies(plan: Topology, message: str) -> None:
    assert message in (why_malformed(plan) or "")
    assert why_malformed(COUNT) is None


def test_topologies_are_equal_in_any_order_of_their_subtopologies() -> None:
    one, two = COUNT.subtopologies
    assert COUNT.is_same(topology(two, one))
    assert not COUNT.is_same(topology(one))
    assert not COUNT.is_same(topology(one, two, epoch=1))


def test_keys_of_tasks_and_javas_order() -> None:
    key = task_key(3, 7)
    assert (task_of(key), task_of(other_role(key))) == ((3, 7, False), (3, 7, True))
    assert other_role(other_role(key)) == key
    assert in_kafka_order(["10", "2", "1", "0", "1"]) == ["0", "1", "2", "10"]
    assert in_kafka_order(["Aa", "BB"]) == ["Aa", "BB"]
    assert in_kafka_order(["BB", "Aa"]) == ["BB", "Aa"], "both have one hash code"
