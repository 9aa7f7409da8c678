"""Requests of streams groups, answer by answer next to Apache Kafka: codes, messages, epochs, statuses, tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.messages import message
from headrace.protocol.client.transport import ClientConfig, parse_servers
from load.dev_server import DevServer
from tests.compat.kafka_server import kafka_server
from tests.house.needs import require

pytestmark = [pytest.mark.requirement("X16"), pytest.mark.slow, pytest.mark.needs("kafka")]
AT_ONCE = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.num.standby.replicas": "0",
}
BEAT, DESCRIBE = message(ApiKey.STREAMS_GROUP_HEARTBEAT, 0), message(ApiKey.STREAMS_GROUP_DESCRIBE, 0)
MINUTE = timedelta(minutes=1)
NOT_READY = (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)


def topic(name: str, count: int = 0, *configs: tuple[str, str]) -> Any:
    pairs = tuple(BEAT.make("KeyValue", key=key, value=value) for key, value in configs)
    return BEAT.make("TopicInfo", name=name, partitions=count, replication_factor=0, topic_configs=pairs)


def sub(name: str, *sources: str, **more: Any) -> Any:
    groups = tuple(
        BEAT.make("CopartitionGroup", source_topics=tuple(s), source_topic_regex=(), repartition_source_topics=tuple(r))
        for s, r in more.get("together", ())
    )
    return BEAT.make(
        "Subtopology",
        subtopology_id=name,
        source_topics=sources,
        source_topic_regex=more.get("regex", ()),
        state_changelog_topics=tuple(more.get("logs", ())),
        repartition_sink_topics=tuple(more.get("sinks", ())),
        repartition_source_topics=tuple(more.get("repartition", ())),
        copartition_groups=groups,
    )


def plan(*subtopologies: Any, epoch: int = 0) -> Any:
    return BEAT.make("Topology", epoch=epoch, subtopologies=subtopologies)


def tasks(**by_sub: list[int]) -> tuple[Any, ...]:
    return tuple(
        BEAT.make("TaskIds", subtopology_id=name.removeprefix("s"), partitions=tuple(partitions))
        for name, partitions in by_sub.items()
    )


SIMPLE = plan(sub("0", "answers"))


class Asked:
    """One cluster, and what it answered so far."""

    def __init__(self, bootstrap: str, stack: ExitStack) -> None:
        config = ClientConfig(parse_servers(bootstrap), "client", 60_000)
        self.cluster = stack.enter_context(KafkaCluster(config, time.sleep))
        self.bootstrap = bootstrap

    def beat(self, group: str, member: str, epoch: int, **more: Any) -> Any:
        """Return what the answer says, without addresses and intervals."""
        values = {
            **dict.fromkeys(
                ("instance_id", "rack_id", "topology", "active_tasks", "standby_tasks", "warmup_tasks", "process_id")
            ),
            **dict.fromkeys(("user_endpoint", "client_tags", "task_offsets", "task_end_offsets")),
            "endpoint_information_epoch": -1,
            "rebalance_timeout": timedelta(milliseconds=-1),
            "shutdown_application": False,
        }
        request = BEAT.request(group_id=group, member_id=member, member_epoch=epoch, **values | more)
        while True:
            answer = self.cluster.ask_in(BEAT, request, self._coordinator(group))
            if answer.error_code not in NOT_READY:
                return answer
            time.sleep(0.1)

    def _coordinator(self, group: str) -> int:
        return self.cluster.look_again(lambda: self.cluster.coordinator(group))

    def join(self, group: str, member: str, topology: Any = SIMPLE, **more: Any) -> Any:
        none: dict[str, Any] = {"active_tasks": (), "standby_tasks": (), "warmup_tasks": ()}
        said = {"rebalance_timeout": MINUTE, "process_id": f"p-{member}", "topology": topology, **none, **more}
        return self.beat(group, member, 0, **said)

    def describe(self, *groups: str) -> Any:
        request = DESCRIBE.request(group_ids=groups, include_authorized_operations=False)
        return self.cluster.ask_in(DESCRIBE, request, self._coordinator(groups[0])).groups


def said(answer: Any) -> dict[str, Any]:
    """Return the fields of a heartbeat's answer that have to be equal."""

    def listed(found: Any) -> Any:
        return None if found is None else sorted((each.subtopology_id, sorted(each.partitions)) for each in found)

    endpoints = answer.partitions_by_user_endpoint
    return {
        "code": answer.error_code,
        "message": answer.error_message,
        "member": answer.member_id,
        "epoch": answer.member_epoch,
        "interval": answer.heartbeat_interval,
        "status": [(status.status_code, status.status_detail) for status in answer.status or ()],
        "active": listed(answer.active_tasks),
        "standby": listed(answer.standby_tasks),
        "warmup": listed(answer.warmup_tasks),
        "endpoint_epoch": answer.endpoint_information_epoch,
        "endpoints": None
        if endpoints is None
        else [
            (each.user_endpoint.port, sorted((part.topic, sorted(part.partitions)) for part in each.active_partitions))
            for each in endpoints
        ],
    }


def group_of(described: Any) -> dict[str, Any]:
    topology = described.topology
    return {
        "code": described.error_code,
        "message": described.error_message,
        "state": described.group_state,
        "epochs": (described.group_epoch, described.assignment_epoch),
        "topology": topology,
        "members": [
            (
                *(each.member_id, each.member_epoch, each.topology_epoch, each.process_id, each.user_endpoint),
                *(each.client_tags, each.assignment, each.target_assignment, each.is_classic, each.client_id),
            )
            for each in sorted(described.members, key=lambda each: str(each.member_id))
        ],
    }


def lifecycle(of: Asked) -> Iterator[Any]:
    """Yield what a group answers from its first member to its last."""
    endpoint = BEAT.make("Endpoint", host="h", port=7)
    tag = (BEAT.make("KeyValue", key="zone", value="a"),)
    yield said(of.join("life", "a", user_endpoint=endpoint, client_tags=tag))
    yield said(of.beat("life", "a", 2, endpoint_information_epoch=0))
    yield said(of.join("life", "b"))
    yield said(of.beat("life", "a", 2))
    yield said(of.beat("life", "b", 3))
    yield group_of(of.describe("life")[0])
    kept = of.describe("life")[0].members
    (mine,) = (each.assignment.active_tasks for each in kept if each.member_id == "a")
    own = tuple(BEAT.make("TaskIds", subtopology_id=each.subtopology_id, partitions=each.partitions) for each in mine)
    nothing: dict[str, Any] = {"standby_tasks": (), "warmup_tasks": ()}
    yield said(of.beat("life", "a", 2, active_tasks=own, **nothing))
    yield said(of.beat("life", "b", 3))
    yield said(of.beat("life", "a", 1))
    yield said(of.beat("life", "a", 9))
    yield said(of.beat("life", "a", 3, active_tasks=tasks(s0=[9]), **nothing))
    yield said(of.beat("life", "a", 3, active_tasks=tasks(s7=[0]), **nothing))
    yield said(of.join("life", "c", plan(sub("0", "answers"), epoch=1)))
    yield said(of.join("life", "c", plan(sub("1", "answers"))))
    yield said(of.beat("life", "b", 3, shutdown_application=True))
    yield said(of.beat("life", "a", 3))
    yield said(of.beat("life", "b", -1))
    yield said(of.beat("life", "x", -1))
    yield said(of.beat("life", "a", 3))
    yield said(of.beat("life", "a", -1))
    yield said(of.beat("life", "a", 4))
    yield group_of(of.describe("life")[0])
    yield said(of.join("life", "d"))


def refusals(of: Asked) -> Iterator[Any]:
    """Yield the answers to requests that no group takes."""
    offset = (BEAT.make("TaskOffset", subtopology_id="0", partition=0, offset=1),)
    for more in (
        {"instance_id": "i"},
        {"task_offsets": offset},
        {"task_end_offsets": ()},
        {"warmup_tasks": tasks(s0=[0])},
        {"topology": plan(sub("0", regex=("a.*",)))},
        {"rebalance_timeout": timedelta(milliseconds=-1)},
        {"active_tasks": None},
        {"standby_tasks": tasks(s0=[0])},
        {"rack_id": " "},
        {"topology": None},
        {"topology": plan(sub("0", "answers", logs=[topic("log", 3)]))},
        {"topology": plan(sub("0", "__consumer_offsets"))},
        {"topology": plan(sub("0", "a b"))},
        {"topology": plan(sub("0", repartition=[topic("r")], sinks=["r"]))},
        {"topology": plan(sub("0", repartition=[topic("r")]))},
        {"topology": plan(sub("0", logs=[topic("log")]))},
    ):
        yield more, said(of.join("refused", "a", **more))
    yield said(of.join("refused", " "))
    yield said(of.join(" ", "a"))
    yield said(of.beat("refused", "a", -2))
    yield said(of.beat("refused", "a", -3))
    yield said(of.beat("refused", "a", 1, active_tasks=()))
    yield said(of.beat("refused", "a", 1, topology=SIMPLE))
    yield said(of.beat("refused", "a", -1))
    yield [group_of(each) for each in sorted(of.describe("refused", ""), key=lambda each: str(each.group_id))]


def topologies(of: Asked) -> Iterator[Any]:
    """Yield the statuses of topologies with which something is wrong, or which lack internal topics."""
    yield said(of.join("missing", "a", plan(sub("0", "answers", *(f"none-{at}" for at in range(4))))))
    yield said(of.join("unequal", "a", plan(sub("0", "answers", "other", together=[((0, 1), ())]))))
    fixed = sub("1", "other", repartition=[topic("unequal-r", 5)], together=[((0,), (0,))])
    yield said(of.join("fixed", "a", plan(sub("0", "answers", sinks=["unequal-r"]), fixed)))
    yield group_of(of.describe("missing")[0])
    count = plan(
        sub("0", "answers", sinks=["made-r"]),
        sub("1", repartition=[topic("made-r")], logs=[topic("made-c", 0, ("cleanup.policy", "compact"))]),
    )
    first = said(of.join("made", "a", count))
    yield first | {"status": [code for code, _ in first["status"]]}
    epoch, deadline = first["epoch"], time.monotonic() + 60
    while True:
        last = said(of.beat("made", "a", epoch))
        epoch = last["epoch"]
        if not last["status"] and last["active"] is not None:
            break
        assert time.monotonic() < deadline, last
        time.sleep(0.2)
    yield last | {"epoch": None}
    described = of.describe("made")[0]
    yield described.topology, described.group_state
    admin = AdminClient({"bootstrap.servers": of.bootstrap})
    found = admin.list_topics(timeout=30).topics
    yield {name: len(found[name].partitions) for name in found if name.startswith("made")}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Asked, Asked]]:
    """Headrace and Kafka, with the same topics."""
    require("kafka")
    with ExitStack() as stack:
        server = DevServer(tmp_path_factory.mktemp("dev"), settings={**AT_ONCE, "linger.ms": 25})
        addresses = [
            stack.enter_context(server).bootstrap,
            stack.enter_context(kafka_server(tmp_path_factory.mktemp("kafka"), AT_ONCE)),
        ]
        for address in addresses:
            topics = [NewTopic("answers", 3, 1), NewTopic("other", 2, 1)]
            admin = AdminClient({"bootstrap.servers": address})
            for created in admin.create_topics(topics).values():
                created.result(60)
        ours, kafkas = (Asked(address, stack) for address in addresses)
        yield ours, kafkas


@pytest.mark.parametrize("script", [lifecycle, refusals, topologies])
def test_each_answer_is_kafkas(script: Callable[[Asked], Iterator[Any]], both: tuple[Asked, Asked]) -> None:
    ours, kafkas = (list(script(of)) for of in both)
    for step, (own, kafka) in enumerate(zip(ours, kafkas, strict=True)):
        assert own == kafka, f"step {step} of {script.__name__}"
