"""ListGroups, DescribeGroups, DeleteGroups and OffsetDelete, in every version, over two agents."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetDeleteRequest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.saved import subscribed_topics
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import call, captured_requests, read_reply, versions_of
from tests.agent.groups.groups_world import Coordinating, GroupsWorld

WORLD_TOPICS = {"orders": 3, "logs": 1}
LISTED = dict[str, tuple[str, str, str]]
"""Group id -> (protocol type, state, type)."""


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription, version 1."""
    names = b"".join(struct.pack(">h", len(name)) + name for name in (topic.encode() for topic in topics))
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, 0)


async def a_member(agent: Coordinating, *topics: str, **more: Any) -> str:
    return await agent.only_member(metadata=subscription(*topics), **more)


async def list_groups(agent: Coordinating, version: int = 5, **filters: list[str]) -> tuple[int, LISTED]:
    answer = await call(agent.handlers[16], ListGroupsRequest(**filters), version)
    return answer.error_code, {
        each.group_id: (each.protocol_type, getattr(each, "group_state", ""), getattr(each, "group_type", ""))
        for each in answer.groups
    }


async def describe(agent: Coordinating, group: str, version: int = 6, *, operations: bool = False) -> Any:
    """Named twice, it is answered once: the answer is much longer than the name."""
    message = DescribeGroupsRequest(groups=[group, group], include_authorized_operations=operations)
    (found,) = (await call(agent.handlers[15], message, version)).groups
    assert found.group_id == group
    return found


async def delete(agent: Coordinating, *groups: str, version: int = 2) -> dict[str, int]:
    answer = await call(agent.handlers[42], DeleteGroupsRequest(groups_names=list(groups)), version)
    return {each.group_id: each.error_code for each in answer.results}


async def delete_offsets(agent: Coordinating, group: str, topics: dict[str, list[int]]) -> tuple[int, Any]:
    topic_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition = topic_class.OffsetDeleteRequestPartition
    message = OffsetDeleteRequest(
        group_id=group,
        topics=[topic_class(name=t, partitions=[partition(partition_index=i) for i in p]) for t, p in topics.items()],
    )
    answer = await call(agent.handlers[47], message, 0)
    return answer.error_code, {t.name: {p.partition_index: p.error_code for p in t.partitions} for t in answer.topics}


@pytest.mark.parametrize("version", versions_of(16))
async def test_groups_are_listed_in_every_version(world: GroupsWorld, version: int) -> None:
    await a_member(world.home)
    code, listed = await list_groups(world.home, version)
    state, kind = "Stable" if version >= 4 else "", "classic" if version >= 5 else ""
    assert (code, listed) == (0, {"g": ("consumer", state, kind)})


async def test_filters_by_state_and_type(home: Coordinating) -> None:
    await a_member(home)
    for filters in (
        {"states_filter": ["stable", "Dead"]},
        {"types_filter": ["Classic"]},
        {"states_filter": ["STABLE "]},
    ):
        assert set((await list_groups(home, 5, **filters))[1]) == {"g"}, filters
    for filters in ({"states_filter": ["Empty"]}, {"types_filter": ["consumer"]}, {"types_filter": ["nonsense"]}):
        assert (await list_groups(home, 5, **filters)) == (0, {}), filters


async def test_every_group_is_listed_once_over_all_agents(world: GroupsWorld) -> None:
    """Also those that no agent has in memory, and those that were claimed by an agent that is gone."""
    names = [f"group-{n}" for n in range(12)]
    first, second = world.agents
    for name in names:
        for agent in world.agents:
            await agent.commit(name, {"orders": {0: 1}})
    for agent in world.agents:
        await agent.requests.close()  # nothing in memory any more
    shares = [set((await list_groups(agent))[1]) for agent in (first, second)]
    assert shares[0] | shares[1] == set(names)
    assert not shares[0] & shares[1]
    assert all(shares)
    await world.clock.run(second.cluster.stop())
    await first.cluster.catch_up()
    assert set((await list_groups(first))[1]) == set(names)


async def test_a_group_is_listed_as_it_is_now(home: Coordinating, world: GroupsWorld) -> None:
    joining = asyncio.create_task(a_member(home))
    for _ in range(20):
        await asyncio.sleep(0)
    member = await joining
    waiting = asyncio.create_task(home.join("g", version=3))
    await world.clock.settle()
    assert (await list_groups(home))[1]["g"][1] == "PreparingRebalance"
    waiting.cancel()
    await home.leave("g", member)
    await world.clock.advance(400)  # the one that waited is given up
    assert (await list_groups(home))[1].get("g", ("", "Empty", ""))[1] == "Empty"


async def test_without_a_lease_the_list_would_lack_groups(home: Coordinating, world: GroupsWorld) -> None:
    await a_member(home, session_timeout_ms=60_000)
    world.cluster_api.fail_before["heartbeat"] = [UnavailableError("down")] * 100
    await world.clock.advance(30)
    assert await list_groups(home) == (ErrorCode.coordinator_not_available, {})
    world.cluster_api.fail_before["heartbeat"].clear()
    world.groups.fail_before["list_groups"] = [UnavailableError("down")]
    assert await list_groups(home) == (ErrorCode.coordinator_not_available, {})


@pytest.mark.parametrize("version", versions_of(15))
async def test_describing_in_every_version(world: GroupsWorld, version: int) -> None:
    member = await a_member(world.home, "orders")
    found = await describe(world.home, "g", version, operations=True)
    assert (found.error_code, found.group_state) == (0, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    (described,) = found.members
    assert (described.member_id, described.client_id, described.client_host) == (member, "test", "/127.0.0.1")
    assert (described.member_metadata, described.member_assignment) == (subscription("orders"), b"all")
    if version >= 3:
        assert found.authorized_operations == {3, 6, 8, 10, 11}  # read, delete, describe, describe and alter configs

    gone = await describe(world.coordinator("nobody"), "nobody", version)
    assert (gone.group_state, gone.members) == ("Dead", [])
    assert gone.error_code == (ErrorCode.group_id_not_found if version >= 6 else 0)


async def test_describing_a_group_between_generations_and_without_members(
    home: Coordinating, world: GroupsWorld
) -> None:
    await a_member(home)
    waiting = asyncio.create_task(home.join("g", version=3))
    await world.clock.settle()
    found = await describe(home, "g")
    assert (found.group_state, found.protocol_data, len(found.members)) == ("PreparingRebalance", "", 2)
    assert all((m.member_metadata, m.member_assignment) == (b"", b"") for m in found.members)
    waiting.cancel()
    await world.coordinator("alone").commit("alone", {"orders": {0: 1}})
    found = await describe(world.coordinator("alone"), "alone")
    assert (found.error_code, found.group_state, found.protocol_type, found.members) == (0, "Empty", "", [])


async def test_describing_elsewhere_and_nonsense(world: GroupsWorld) -> None:
    await a_member(world.home)
    assert (await describe(world.other, "g")).error_code == ErrorCode.not_coordinator
    assert (await describe(world.home, "")).error_code == ErrorCode.invalid_group_id
    assert (await describe(world.home, "a\0b")).error_code == ErrorCode.invalid_group_id


@pytest.mark.parametrize("version", versions_of(42))
async def test_deleting_in_every_version(home: Coordinating, version: int) -> None:
    member = await a_member(home)
    await home.commit("g", {"orders": {0: 5}}, member_id=member, generation=1)
    assert await delete(home, "g", version=version) == {"g": ErrorCode.non_empty_group}
    await home.leave("g", member)
    assert await delete(home, "g", version=version) == {"g": 0}
    assert await home.fetch("g", None) == (0, {})
    assert await list_groups(home) == (0, {})
    assert await delete(home, "g", "a\0b", version=version) == {
        "g": ErrorCode.group_id_not_found,
        "a\0b": ErrorCode.invalid_group_id,
    }
    again = await a_member(home)  # a group of the same name starts empty
    assert again != member


async def test_a_deletion_with_a_lost_or_late_response(home: Coordinating, world: GroupsWorld) -> None:
    await home.commit("g", {"orders": {0: 5}})
    world.groups.fail_after["delete_group"] = [OutcomeUnknownError("lost")]
    assert await delete(home, "g") == {"g": ErrorCode.request_timed_out}
    assert await delete(home, "g") == {"g": ErrorCode.group_id_not_found}
    await home.commit("g", {"orders": {0: 6}})
    world.groups.take_over("g")
    assert await delete(home, "g") == {"g": ErrorCode.not_coordinator}
    assert (await home.fetch("g", None))[1]["orders"][0][0] == 6
    assert await delete(world.other, "g") == {"g": ErrorCode.not_coordinator}


async def test_who_joins_while_the_group_is_deleted_joins_a_new_one(home: Coordinating, world: GroupsWorld) -> None:
    await home.commit("g", {"orders": {0: 5}})
    gate = asyncio.Event()
    world.groups.gates["delete_group"] = [gate]
    deleting = asyncio.create_task(delete(home, "g"))
    await world.clock.settle()
    joining = asyncio.create_task(home.join("g", version=3))
    await world.clock.settle()
    gate.set()
    assert await deleting == {"g": 0}
    assert (await joining).error_code in (0, ErrorCode.not_coordinator)
    await a_member(home)
    assert (await list_groups(home))[1]["g"][1] == "Stable"


async def test_offsets_of_topics_in_use_stay(home: Coordinating) -> None:
    member = await a_member(home, "orders")
    commit = await home.commit("g", {"orders": {0: 5, 1: 6}, "logs": {0: 7}}, member_id=member, generation=1)
    assert commit == {"orders": {0: 0, 1: 0}, "logs": {0: 0}}
    in_use, unknown = ErrorCode.group_subscribed_to_topic, ErrorCode.unknown_topic_or_partition
    assert await delete_offsets(home, "g", {"orders": [0, 9], "logs": [0], "nothing": [0]}) == (
        0,
        {"orders": {0: in_use, 9: unknown}, "logs": {0: 0}, "nothing": {0: unknown}},
    )
    assert set((await home.fetch("g", None))[1]) == {"orders"}
    await home.leave("g", member)
    assert await delete_offsets(home, "g", {"orders": [0, 2]}) == (0, {"orders": {0: 0, 2: 0}})
    assert (await home.fetch("g", None))[1]["orders"] == {1: (6, 3, "m", 0)}


async def test_offsets_of_groups_that_are_not_consumers_or_not_there(home: Coordinating) -> None:
    assert await delete_offsets(home, "g", {"orders": [0]}) == (ErrorCode.group_id_not_found, {})
    assert await delete_offsets(home, "a\0b", {"orders": [0]}) == (ErrorCode.invalid_group_id, {})
    await a_member(home, protocol_type="connect")
    assert await delete_offsets(home, "g", {"orders": [0]}) == (ErrorCode.non_empty_group, {})


async def test_offsets_that_cannot_be_deleted_now(home: Coordinating, world: GroupsWorld) -> None:
    await home.commit("g", {"orders": {0: 5}})
    world.groups.fail_before["delete_offsets"] = [UnavailableError("down")]
    assert await delete_offsets(home, "g", {"orders": [0]}) == (ErrorCode.coordinator_not_available, {})
    world.groups.take_over("g")
    assert await delete_offsets(home, "g", {"orders": [0]}) == (ErrorCode.not_coordinator, {})
    assert await delete_offsets(home, "g", {"orders": [0]}) == (0, {"orders": {0: 0}})


@pytest.mark.parametrize("api_key", [15, 16, 42, 47])
async def test_what_real_clients_sent_is_answered(world: GroupsWorld, api_key: int) -> None:
    for label, request in captured_requests(api_key):
        answer = read_reply(request, await world.home.handlers[api_key](request))
        assert answer.version == request.api_version, label


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\0\1", struct.pack(">hi", 1, 2**31 - 1), subscription("orders")[:-12], subscription("a\0b"), b"x" * 20],
)
def test_a_subscription_that_is_not_kafkas_is_not_known(damaged: bytes) -> None:
    assert subscribed_topics("consumer", [subscription("a"), damaged]) is None


def test_subscriptions_are_put_together() -> None:
    both = [subscription("a", "b"), subscription("b", "\N{SNOWMAN}")]
    assert subscribed_topics("consumer", both) == frozenset({"a", "b", "\N{SNOWMAN}"})
    assert subscribed_topics("consumer", []) == frozenset()
    assert subscribed_topics("connect", [subscription("a")]) is None
