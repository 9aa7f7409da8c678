"""ConsumerGroupPosition: positions of members, by generation; bounded; refused for what is no member."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.positions import GroupPositionMemory
from headrace.protocol.ordered_requests import (
    GROUP_POSITION_KEY,
    NO_POSITION,
    GroupPositionRequest,
    GroupPositionResponse,
    PartitionPosition,
    decode_position_response,
    encode_position_request,
)
from headrace.protocol.request import CloseConnection
from tests.agent.client_calls import a_request
from tests.agent.groups.groups_world import Coordinating, GroupsWorld

WORLD_TOPICS = {"t": 4}
FIRST, SECOND = (1, 1), (1, 2)


def asks(*partitions: int) -> dict[str, list[PartitionPosition]]:
    return {"t": [PartitionPosition(index, True) for index in partitions]}


def exchanged(
    memory: GroupPositionMemory,
    group: str,
    generation: tuple[int, int],
    member: str,
    said: dict[str, list[PartitionPosition]],
) -> dict[tuple[str, int], int]:
    rows = [((topic, each.partition, None), each) for topic, partitions in said.items() for each in partitions]
    return {ref[:2]: position for ref, position in memory.exchange(group, generation, member, rows).items()}


def reports(**positions: int) -> dict[str, list[PartitionPosition]]:
    """p3=7: position 7 in partition 3."""
    return {"t": [PartitionPosition(int(name[1:]), False, at) for name, at in positions.items()]}


@pytest.mark.requirement("P6")
def test_a_member_learns_what_others_wait_for_and_how_far_they_are() -> None:
    memory = GroupPositionMemory()
    assert exchanged(memory, "g", FIRST, "b", asks(3)) == {("t", 3): NO_POSITION}
    assert exchanged(memory, "g", FIRST, "a", {}) == {("t", 3): NO_POSITION}
    exchanged(memory, "g", FIRST, "a", reports(p3=7))
    assert exchanged(memory, "g", FIRST, "b", asks(3)) == {("t", 3): 7}
    assert exchanged(memory, "g", FIRST, "b", {}) == {}


@pytest.mark.requirement("P6")
@pytest.mark.parametrize("later", [(1, 2), (2, 1)], ids=["generation", "coordinator"])
def test_positions_are_forgotten_with_the_generation_and_the_coordinator(later: tuple[int, int]) -> None:
    memory = GroupPositionMemory()
    exchanged(memory, "g", FIRST, "a", reports(p3=7))
    assert exchanged(memory, "g", later, "b", asks(3)) == {("t", 3): NO_POSITION}


def test_the_memory_is_bounded_and_forgets_the_group_that_asked_least_recently() -> None:
    memory = GroupPositionMemory(positions_max=4)
    exchanged(memory, "old", FIRST, "a", reports(p1=1, p2=1))
    exchanged(memory, "new", FIRST, "a", reports(p1=1, p2=1, p3=1))
    assert exchanged(memory, "new", FIRST, "b", asks(1)) == {("t", 1): 1}
    assert exchanged(memory, "old", FIRST, "b", asks(1)) == {("t", 1): NO_POSITION}
    exchanged(memory, "large", FIRST, "a", reports(p1=1, p2=1, p3=1, p4=1, p5=1))
    assert exchanged(memory, "large", FIRST, "b", asks(1)) == {("t", 1): NO_POSITION}


async def exchange(
    agent: Coordinating, member: str, generation: int, said: dict[str, list[PartitionPosition]], group: str = "g"
) -> GroupPositionResponse:
    body = encode_position_request(GroupPositionRequest(group, generation, member, said))
    response = await agent.handlers[GROUP_POSITION_KEY](a_request(GROUP_POSITION_KEY, 0, body))
    assert response.buffers is not None
    frame = b"".join(response.buffers)
    assert frame[:4] == (42).to_bytes(4, "big")
    return decode_position_response(memoryview(frame)[4:])


@pytest.mark.requirement("P5")
async def test_a_member_of_a_classic_group_reports_and_asks(world: GroupsWorld) -> None:
    member = await world.home.only_member()
    await exchange(world.home, member, 1, reports(p3=7, p9=1))
    answer = await exchange(world.home, member, 1, asks(3, 2, 9) | {"unknown": [PartitionPosition(0, True)]})
    assert answer.topics == {"t": [PartitionPosition(2, True, NO_POSITION), PartitionPosition(3, True, 7)]}


@pytest.mark.requirement("P5")
async def test_other_requests_are_refused_as_commits_are(world: GroupsWorld) -> None:
    member = await world.home.only_member()
    refused = {
        "another agent": (await exchange(world.other, member, 1, {})).error_code,
        "another member": (await exchange(world.home, "nobody", 1, {})).error_code,
        "another generation": (await exchange(world.home, member, 9, {})).error_code,
        "no generation": (await exchange(world.home, member, -1, {})).error_code,
        "no group": (await exchange(world.home, member, 1, {}, group="\0")).error_code,
    }
    assert refused == {
        "another agent": ErrorCode.not_coordinator,
        "another member": ErrorCode.unknown_member_id,
        "another generation": ErrorCode.illegal_generation,
        "no generation": ErrorCode.unknown_member_id,
        "no group": ErrorCode.invalid_group_id,
    }


async def test_another_version_closes_the_connection(world: GroupsWorld) -> None:
    with pytest.raises(CloseConnection):
        await world.home.handlers[GROUP_POSITION_KEY](a_request(GROUP_POSITION_KEY, 1, b""))
