"""A group that becomes one of the other kind, through the handlers, while its members stay."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from headrace.metastore.api.groups import GroupKind
from tests.agent.groups.consumer.test_requests import assigned, describe, heartbeat, topic_id
from tests.agent.groups.groups_world import Coordinating, GroupsWorld
from tests.protocol.embedded_bytes import assignment_bytes, subscription_bytes

WORLD_TOPICS = {"t": 4}


async def a_classic_group(home: Coordinating) -> str:
    joined = await home.join("g", version=3, metadata=subscription_bytes(["t"]))
    member_id = str(joined.member_id)
    await home.sync("g", member_id, 1, {member_id: assignment_bytes({"t": [0, 1, 2, 3]})})
    return member_id


async def test_a_group_is_upgraded_and_downgraded_while_its_members_live(
    home: Coordinating, world: GroupsWorld
) -> None:
    """Classic, mixed, consumer, mixed, classic: as when the clients of a group are upgraded and rolled back."""
    classic = await a_classic_group(home)
    answer = await heartbeat(home, "new", 0)
    assert (assigned(answer), answer.member_epoch) == ({}, 2)
    assert world.groups.groups["g"].record is not None
    assert world.groups.groups["g"].record.kind is GroupKind.CONSUMER
    assert [member.member_type for member in (await describe(home)).members] == [0, 1]
    assert await home.heartbeat("g", classic, 1) == ErrorCode.rebalance_in_progress
    owned = subscription_bytes(["t"], {"t": [0, 1, 2, 3]})
    assert (await home.join("g", classic, metadata=owned, version=5)).generation_id == 1
    owned = subscription_bytes(["t"], {"t": [0, 1]})
    assert (await home.join("g", classic, metadata=owned, version=5)).generation_id == 2
    assert (await home.sync("g", classic, 2, {})).assignment == assignment_bytes({"t": [0, 1]})
    assert assigned(await heartbeat(home, "new", 2)) == {topic_id(world): (2, 3)}
    assert (await heartbeat(home, "new", -1)).error_code is ErrorCode.none
    await world.clock.settle()
    record = world.groups.groups["g"].record
    assert record is not None
    assert record.kind is GroupKind.CLASSIC
    assert await home.heartbeat("g", classic, 2) == ErrorCode.rebalance_in_progress, "it keeps its generation"
    joined = await home.join("g", classic, metadata=owned, version=5)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 3, classic)


async def test_a_group_that_cannot_be_upgraded_stays(home: Coordinating) -> None:
    joined = await home.join("g", version=3, metadata=b"custom")
    await home.sync("g", joined.member_id, 1, {joined.member_id: b"custom"})
    answer = await heartbeat(home, "new", 0)
    assert answer.error_code is ErrorCode.group_id_not_found
    assert "Cannot upgrade" in answer.error_message
    assert (await heartbeat(home, "new", 3)).error_code is ErrorCode.unknown_member_id
    assert await home.heartbeat("g", joined.member_id, 1) == 0
