"""Streams groups through the handlers of two agents: kinds, changes of protocol, internal topics, hand-over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.groups.streams.internal_topics import ERRORS_MAX, InternalTopics
from headrace.agent.groups.streams.topology import InternalTopic
from headrace.agent.limits.work_slices import WorkSlices
from headrace.metastore.api.agents import STREAMS_VERSION, FeatureRange
from headrace.metastore.api.groups import GroupKind
from headrace.protocol.client.messages import message
from headrace.protocol.request import ClientConnection, Request
from tests.agent.groups.groups_world import Coordinating, GroupsWorld
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X16")
WORLD_TOPICS = {"words": 2}
BEAT, DESCRIBE = 88, 89
HEARTBEAT = message(BEAT, 0)
NOTHING: dict[str, Any] = {
    **dict.fromkeys(("instance_id", "rack_id", "topology", "active_tasks", "standby_tasks", "warmup_tasks")),
    **dict.fromkeys(("process_id", "user_endpoint", "client_tags", "task_offsets", "task_end_offsets")),
    "endpoint_information_epoch": -1,
    "rebalance_timeout": timedelta(milliseconds=-1),
    "shutdown_application": False,
}


def a_topology(*sources: str, log: str = "") -> Any:
    logs = (HEARTBEAT.make("TopicInfo", name=log, partitions=0, replication_factor=0, topic_configs=()),) if log else ()
    part = HEARTBEAT.make(
        "Subtopology",
        subtopology_id="0",
        source_topics=sources,
        source_topic_regex=(),
        state_changelog_topics=logs,
        repartition_sink_topics=(),
        repartition_source_topics=(),
        copartition_groups=(),
    )
    return HEARTBEAT.make("Topology", epoch=0, subtopologies=(part,))


def _request(api_key: int, entity: Any) -> Request:
    return Request(ClientConnection(1, "h:1"), api_key, 0, 1, "client", memoryview(b""), 0.0, entity)


async def beat(agent: Coordinating, epoch: int, group: str = "g", member: str = "m", **more: Any) -> Any:
    entity = HEARTBEAT.request(group_id=group, member_id=member, member_epoch=epoch, **NOTHING | more)
    response: Any = await agent.handlers[BEAT](_request(BEAT, entity))
    assert response.buffers
    return response.entity


async def join(agent: Coordinating, group: str = "g", member: str = "m", **more: Any) -> Any:
    said: dict[str, Any] = {"active_tasks": (), "standby_tasks": (), "warmup_tasks": (), "process_id": "p"}
    said |= {"topology": a_topology("words"), "rebalance_timeout": timedelta(minutes=1)}
    return await beat(agent, 0, group, member, **said | more)


async def describe(agent: Coordinating, *groups: str) -> Any:
    entity = message(DESCRIBE, 0).request(group_ids=groups, include_authorized_operations=True)
    response: Any = await agent.handlers[DESCRIBE](_request(DESCRIBE, entity))
    assert response.buffers
    return response.entity.groups


def offer(world: GroupsWorld, level: int = 1) -> None:
    for agent in world.agents:
        follower = agent.cluster.follower
        features = {**follower.image.features, STREAMS_VERSION: FeatureRange(0, level)}
        follower.image = replace(follower.image, features=MappingProxyType(features))


async def assigned(world: GroupsWorld, agent: Coordinating, group: str = "g") -> int:
    """Join, and wait until the member has its tasks; its epoch."""
    joined = await world.clock.run(join(agent, group))
    assert (joined.error_code, joined.member_epoch, joined.active_tasks) == (0, 1, ())
    await world.clock.advance(4.0)
    told = await world.clock.run(beat(agent, 1, group))
    assert [(each.subtopology_id, each.partitions) for each in told.active_tasks] == [("0", (0, 1))]
    return int(told.member_epoch)


async def test_a_group_is_listed_described_and_deleted(world: GroupsWorld) -> None:
    offer(world)
    epoch = await assigned(world, world.home)
    (listed,) = await world.clock.run(world.home.requests.administration.list(WorkSlices()))  # type: ignore[misc]
    assert (listed.kind, listed.state, listed.protocol_type) == (GroupKind.STREAMS, "Stable", "streams")
    (group,) = await world.clock.run(describe(world.home, "g"))
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (
        0,
        "Stable",
        epoch,
        epoch,
    )
    (member,) = group.members
    assert (member.member_id, member.process_id, member.client_id) == ("m", "p", "client")
    assert member.assignment.active_tasks == member.target_assignment.active_tasks
    assert group.topology.subtopologies[0].source_topics == ("words",)
    code = await world.clock.run(world.home.requests.administration.delete("g"))
    assert code is ErrorCode.non_empty_group
    await world.clock.run(beat(world.home, -1))
    assert await world.clock.run(world.home.requests.administration.delete("g")) is ErrorCode.none
    (gone,) = await world.clock.run(describe(world.home, "g"))
    assert (gone.error_code, gone.error_message) == (ErrorCode.group_id_not_found, "Group g not found.")


async def test_another_agent_continues_with_the_same_tasks(world: GroupsWorld) -> None:
    """Without a rebalance: the member goes on under its epoch."""
    offer(world)
    epoch = await assigned(world, world.home)
    held = world.home.requests.groups.get("g")
    assert held is not None
    world.home.requests.groups.drop(held)
    await world.clock.advance(1.0)
    again = await world.clock.run(beat(world.home, epoch))
    assert (again.error_code, again.member_epoch, again.active_tasks) == (0, epoch, None)
    codes = await world.clock.run(
        world.home.commit("g", {"words": {0: 5}}, version=9, generation=epoch, member_id="m", metadata="")
    )
    assert codes == {"words": {0: ErrorCode.none}}
    stale = await world.clock.run(
        world.home.commit("g", {"words": {0: 4}}, version=9, generation=epoch - 1, member_id="m", metadata="")
    )
    assert stale == {"words": {0: ErrorCode.stale_member_epoch}}


async def test_an_application_changes_its_protocol_while_it_is_stopped(world: GroupsWorld) -> None:
    """The offsets stay, to the new protocol and back."""
    offer(world)
    clock, home = world.clock, world.home
    member = await clock.run(home.only_member())
    refused = await clock.run(join(home))
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.group_id_not_found,
        "Group g is not a streams group.",
    )
    assert await clock.run(home.commit("g", {"words": {0: 7}}, generation=1, member_id=member)) == {"words": {0: 0}}
    await clock.run(home.leave("g", member))
    epoch = await assigned(world, home)
    assert (await clock.run(home.join("g"))).error_code == ErrorCode.inconsistent_group_protocol
    await clock.run(beat(home, -1))
    assert epoch == 2
    await clock.run(home.only_member())
    code, offsets = await clock.run(home.fetch("g", {"words": [0]}))
    assert (code, offsets["words"][0][0]) == (0, 7)


async def test_groups_of_other_kinds_stay_what_they_are(world: GroupsWorld) -> None:
    offer(world)
    assert (await world.clock.run(beat(world.home, -1))).error_code == ErrorCode.group_id_not_found
    assert (await world.clock.run(beat(world.home, 5))).error_code == ErrorCode.unknown_member_id
    assert (await world.clock.run(join(world.other))).error_code == ErrorCode.not_coordinator
    invalid = await world.clock.run(join(world.home, topology=a_topology()))
    assert invalid.error_code == ErrorCode.streams_invalid_topology
    assert world.groups.groups["g"].record is None, "nothing was stored"
    offer(world, 0)
    refused = await world.clock.run(join(world.home))
    assert (refused.error_code, refused.member_id) == (ErrorCode.unsupported_version, "")
    (described,) = await world.clock.run(describe(world.home, "g"))
    assert described.error_code == ErrorCode.unsupported_version


async def test_a_large_topology_is_refused(world: GroupsWorld) -> None:
    offer(world)
    names = [f"t{number}".ljust(200, "x") for number in range(20_000)]
    answer = await world.clock.run(join(world.home, topology=a_topology(*names)))
    assert answer.error_code == ErrorCode.invalid_request
    assert world.home.requests.memory.in_use_bytes < 1 << 20


class Creations:
    """What was asked for; `failed` is what each creation answers."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.failed: dict[str, str] = {}

    async def __call__(self, request: Request, topics: Sequence[InternalTopic]) -> Mapping[str, str]:
        self.asked.append([topic.name for topic in topics])
        await asyncio.sleep(0)
        return self.failed


async def test_missing_topics_are_created_once_and_members_hear_of_failures(world: GroupsWorld) -> None:
    offer(world)
    creations = Creations()
    world.home.requests.internal_topics.create = creations
    plan = a_topology("words", log="log")
    creations.failed = {"log": "no room"}
    first = await world.clock.run(join(world.home, topology=plan))
    missing = next(each for each in first.status if each.status_code == 3)
    assert missing.status_detail == "Internal topics are missing: log"
    again = await world.clock.run(beat(world.home, 1))
    missing = next(each for each in again.status if each.status_code == 3)
    assert missing.status_detail.endswith("; Creation failed: log (no room).")
    assert creations.asked == [["log"]], "not again before the error is forgotten"
    await world.clock.advance(11.0)
    await world.clock.run(beat(world.home, 1))
    assert creations.asked == [["log"], ["log"]]


async def test_errors_are_bounded_and_one_creation_is_under_way(fake_clock: ManualClock) -> None:
    topics, creations = InternalTopics(fake_clock, None), Creations()
    topics.create = creations
    request = _request(BEAT, None)
    many = [InternalTopic(f"t{number}", 1, 0) for number in range(ERRORS_MAX + 10)]
    creations.failed = {topic.name: "no" for topic in many}
    assert topics.ask(request, many, 10.0) == topics.ask(request, many, 10.0) == ""
    await fake_clock.advance(0.1)
    told = topics.ask(request, many[-4:], 10.0)
    assert told == "; Creation failed: t1006 (no), t1007 (no), t1008 (no) and 1 more."
    assert len(creations.asked) == 1
    await topics.close()


async def test_members_hear_of_a_creation_that_raises(fake_clock: ManualClock) -> None:
    topics = InternalTopics(fake_clock, None)

    async def fail(request: Request, wanted: Sequence[InternalTopic]) -> Mapping[str, str]:
        raise OSError("the wire is cut")

    topics.create = fail
    topics.ask(_request(BEAT, None), [InternalTopic("t", 1, 0)], 10.0)
    await fake_clock.advance(0.1)
    assert "t (the wire is cut)" in topics.ask(_request(BEAT, None), [InternalTopic("t", 1, 0)], 10.0)


class Denying:
    """Implements what is asked of an Authorizer: the client may create topics of these names."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def access(self, connection: ClientConnection) -> Denying:
        return self

    def allows(self, operation: AclOperation, resource_type: AclResource, name: str) -> bool:
        return False

    def require(self, request: Request, operation: AclOperation, resource_type: AclResource, name: str) -> bool:
        assert (operation, resource_type) == (AclOperation.CREATE, AclResource.TOPIC)
        return name in self._names


async def test_all_internal_topics_or_none_are_created_for_a_client(fake_clock: ManualClock) -> None:
    creations, request = Creations(), _request(BEAT, None)
    missing = [InternalTopic("a", 1, 0), InternalTopic("b", 1, 0)]
    denied = InternalTopics(fake_clock, Denying("a"))  # type: ignore[arg-type]
    denied.create = creations
    assert denied.ask(request, missing, 10.0) == "; Unauthorized to CREATE on topics b."
    allowed = InternalTopics(fake_clock, Denying("a", "b"))  # type: ignore[arg-type]
    allowed.create = creations
    assert allowed.ask(request, missing, 10.0) == ""
    await fake_clock.advance(0.1)
    assert creations.asked == [["a", "b"]]
