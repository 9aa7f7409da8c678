"""Group requests in every version, from a client's bytes to its answer's."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from kafka.protocol.consumer import LeaveGroupRequest, SyncGroupRequest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.group import ClassicGroup
from headrace.metastore.log.kip631_records import RemoveTopicRecord
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import call, captured_requests, read_reply, versions_of
from tests.agent.groups.groups_world import Coordinating, GroupsWorld


@pytest.mark.parametrize("version", versions_of(11))
async def test_joining_in_every_version(home: Coordinating, version: int) -> None:
    joined = await home.join("g", version=version)
    if version >= 4:
        assert joined.error_code == ErrorCode.member_id_required
        joined = await home.join("g", joined.member_id, version=version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, b"topics")]
    if version >= 7:
        assert joined.protocol_type == "consumer"


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
async def test_from_version_5_on_a_member_names_its_protocol(home: Coordinating, missing: str) -> None:
    joined = await home.join("g", version=0)
    names = {"protocol_type": "consumer", "protocol_name": "range"} | {missing: None}
    message = SyncGroupRequest(
        group_id="g", member_id=joined.member_id, generation_id=joined.generation_id, assignments=[], **names
    )
    assert (await call(home.handlers[14], message, 5)).error_code == ErrorCode.inconsistent_group_protocol
    assert (await call(home.handlers[14], message, 4)).error_code == 0


@pytest.mark.parametrize("version", versions_of(14))
async def test_syncing_in_every_version(home: Coordinating, version: int) -> None:
    joined = await home.join("g", version=3)
    synced = await home.sync("g", joined.member_id, 1, {joined.member_id: b"all"}, version=version)
    assert (synced.error_code, synced.assignment) == (0, b"all")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    refused = await home.sync("g", joined.member_id, 7, {}, version=version)
    assert (refused.error_code, refused.assignment) == (ErrorCode.illegal_generation, b"")


@pytest.mark.parametrize("version", versions_of(12))
async def test_heartbeats_in_every_version(home: Coordinating, version: int) -> None:
    member = await home.only_member(version=9)
    assert await home.heartbeat("g", member, 1, version=version) == 0
    assert await home.heartbeat("g", member, 2, version=version) == ErrorCode.illegal_generation
    assert await home.heartbeat("g", "nobody", 1, version=version) == ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", versions_of(13))
async def test_leaving_in_every_version(home: Coordinating, version: int) -> None:
    member = await home.only_member(version=9)
    answer = await home.leave("g", member, version=version)
    assert answer.error_code == 0
    if version >= 3:
        assert [(m.member_id, m.error_code) for m in answer.members] == [(member, 0)]
    again = await home.leave("g", member, version=version)
    code = again.members[0].error_code if version >= 3 else again.error_code
    assert code == ErrorCode.unknown_member_id


async def test_static_members_are_removed_by_instance_id(home: Coordinating) -> None:
    joined = await home.join("g", instance_id="i-1", version=5)
    assert (joined.error_code, joined.members[0].group_instance_id) == (0, "i-1")
    members = [LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=i) for i in ("i-1", "i-2")]
    answer = await call(home.handlers[13], LeaveGroupRequest(group_id="g", members=members), 5)
    assert [(m.group_instance_id, m.error_code) for m in answer.members] == [
        ("i-1", 0),
        ("i-2", ErrorCode.unknown_member_id),
    ]


async def test_two_clients_meet(home: Coordinating) -> None:
    leader = await home.only_member(version=9)
    second = asyncio.create_task(home.join("g", version=3))
    for _ in range(5):  # a join waits for its turn
        await asyncio.sleep(0)
    assert await home.heartbeat("g", leader, 1) == ErrorCode.rebalance_in_progress
    told = await home.join("g", leader)
    follower = await second
    assert {m.member_id for m in told.members} == {leader, follower.member_id}
    waiting = asyncio.create_task(home.sync("g", follower.member_id, 2, {}))
    await asyncio.sleep(0)
    await home.sync("g", leader, 2, {leader: b"one", follower.member_id: b"two"})
    assert (await waiting).assignment == b"two"


@pytest.mark.parametrize("group", ["", "a\0b"])
async def test_impossible_group_ids(home: Coordinating, group: str) -> None:
    illegal = ErrorCode.invalid_group_id
    assert (await home.join(group)).error_code == illegal
    assert (await home.sync(group, "m", 1, {})).error_code == illegal
    assert await home.heartbeat(group, "m", 1) == illegal
    assert (await home.leave(group, "m")).error_code == illegal


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, -1])
async def test_session_timeouts_have_bounds(home: Coordinating, timeout_ms: int) -> None:
    answer = await home.join("g", session_timeout_ms=timeout_ms)
    assert answer.error_code == ErrorCode.invalid_session_timeout


async def test_another_agents_group_is_refused_everywhere(world: GroupsWorld) -> None:
    world.cluster_api.add_topic("orders")
    other = world.other
    elsewhere = ErrorCode.not_coordinator
    assert (await other.join("g")).error_code == elsewhere
    assert (await other.sync("g", "m", 1, {})).error_code == elsewhere
    assert await other.heartbeat("g", "m", 1) == elsewhere
    assert (await other.leave("g", "m", version=5)).error_code == elsewhere
    assert await other.commit("g", {"orders": {0: 5}}) == {"orders": {0: elsewhere}}
    assert (await other.fetch("g", None))[0] == elsewhere
    assert world.groups.calls.total() == 0


@pytest.mark.parametrize("version", versions_of(8))
async def test_commit_and_fetch_in_every_version(world: GroupsWorld, version: int) -> None:
    home, topic_id = world.home, world.cluster_api.add_topic("orders", 3)
    topic = topic_id if version >= 10 else "orders"
    assert await home.commit("g", {topic: {0: 5, 2: 7}}, version=version) == {topic: {0: 0, 2: 0}}
    epoch = 3 if version >= 6 else -1
    code, found = await home.fetch("g", {topic: [0, 1, 2]}, version=max(version, 5))
    assert code == 0
    assert found == {topic: {0: (5, epoch, "m", 0), 1: (-1, -1, "", 0), 2: (7, epoch, "m", 0)}}


@pytest.mark.parametrize("version", versions_of(9))
async def test_fetch_in_every_version(home: Coordinating, world: GroupsWorld, version: int) -> None:
    orders, gone = world.cluster_api.add_topic("orders", 2), uuid.uuid4()
    await home.commit("g", {"orders": {1: 9}})
    by_id = version >= 10
    known, unknown = (orders, gone) if by_id else ("orders", "gone")
    epoch = 3 if version >= 5 else -1
    code, found = await home.fetch("g", {known: [1], unknown: [0]}, version=version)
    assert code in (0, None)
    lost = ErrorCode.unknown_topic_id if by_id else 0
    assert found == {known: {1: (9, epoch, "m", 0)}, unknown: {0: (-1, -1, "", lost)}}
    if version >= 2:
        assert await home.fetch("g", None, version=version) == (0, {known: {1: (9, epoch, "m", 0)}})


async def test_a_partition_that_is_refused_leaves_the_others(home: Coordinating, world: GroupsWorld) -> None:
    orders = world.cluster_api.add_topic("orders", 2)
    unknown = ErrorCode.unknown_topic_or_partition
    answer = await home.commit("g", {"orders": {0: 1, 5: 1}, "nope": {0: 1}})
    assert answer == {"orders": {0: 0, 5: unknown}, "nope": {0: unknown}}
    nobody = uuid.uuid4()
    answer = await home.commit("g", {orders: {1: 4}, nobody: {0: 1}}, version=10)
    assert answer == {orders: {1: 0}, nobody: {0: ErrorCode.unknown_topic_id}}
    too_long = await home.commit("g", {"orders": {0: 99}}, metadata="x" * 21)
    assert too_long == {"orders": {0: ErrorCode.offset_metadata_too_large}}
    assert (await home.fetch("g", {"orders": [0, 1]}))[1]["orders"] == {0: (1, 3, "m", 0), 1: (4, 3, "m", 0)}
    assert await home.commit("g", {"orders": {0: 2}}, metadata="note\0") == {"orders": {0: 0}}  # as librdkafka ends it
    assert (await home.fetch("g", {"orders": [0]}))[1]["orders"] == {0: (2, 3, "note\0", 0)}


async def test_a_partition_that_goes_meanwhile(world: GroupsWorld) -> None:
    world.cluster_api.add_topic("orders", 2)
    image = await world.home.cluster.catch_up()
    key = image.topics_by_name["orders"].key(1)
    assert key is not None
    world.groups.deleted_keys.add(key)
    answer = await world.home.commit("g", {"orders": {0: 1, 1: 1}})
    assert answer == {"orders": {0: 0, 1: ErrorCode.unknown_topic_or_partition}}


async def test_positions_of_a_deleted_topic_are_not_its_successors(world: GroupsWorld) -> None:
    old = world.cluster_api.add_topic("orders")
    await world.home.commit("g", {"orders": {0: 42}})
    world.cluster_api.append(RemoveTopicRecord(topic_id=old))
    world.cluster_api.add_topic("orders")
    await world.catch_up()
    assert await world.home.fetch("g", {"orders": [0]}) == (0, {"orders": {0: (-1, -1, "", 0)}})
    assert await world.home.fetch("g", None) == (0, {})


async def test_commits_are_fenced_by_generation(home: Coordinating, world: GroupsWorld) -> None:
    world.cluster_api.add_topic("orders")
    member = await home.only_member(version=9)

    async def code(**who: Any) -> int:
        return int((await home.commit("g", {"orders": {0: 1}}, **who))["orders"][0])

    assert await code(member_id=member, generation=1) == 0
    assert await code(member_id=member, generation=2) == ErrorCode.illegal_generation
    assert await code(member_id="nobody", generation=1) == ErrorCode.unknown_member_id
    assert await code() == ErrorCode.unknown_member_id  # the group has members: no manual assignment


async def test_commits_of_one_group_are_stored_in_the_order_they_came(home: Coordinating, world: GroupsWorld) -> None:
    world.cluster_api.add_topic("orders")
    slow = asyncio.Event()
    world.groups.gates["commit_offsets"] = [slow]
    first = asyncio.create_task(home.commit("g", {"orders": {0: 1}}))
    await world.clock.settle()
    second = asyncio.create_task(home.commit("g", {"orders": {0: 2}}))
    fetch = asyncio.create_task(home.fetch("g", {"orders": [0]}))
    await world.clock.settle()
    assert not second.done()
    slow.set()
    await asyncio.gather(first, second)
    assert (await fetch)[1]["orders"][0][0] == 2


async def test_a_metastore_that_is_away(world: GroupsWorld) -> None:
    home, down = world.home, UnavailableError("down")
    world.cluster_api.add_topic("orders")
    await world.catch_up()
    world.groups.fail_before["claim_group"] = [down]
    world.groups.fail_after["claim_group"] = [OutcomeUnknownError("lost")]
    assert await home.heartbeat("g", "m", 1) == ErrorCode.coordinator_not_available
    asked = asyncio.create_task(home.heartbeat("g", "m", 1))
    await world.clock.advance(1)
    assert await asked == ErrorCode.unknown_member_id  # the claim was repeated until its answer came
    world.groups.fail_before["commit_offsets"] = [down]
    world.groups.fail_after["commit_offsets"] = [OutcomeUnknownError("lost")]
    away = {"orders": {0: ErrorCode.coordinator_not_available}}
    assert await home.commit("g", {"orders": {0: 1}}) == away
    assert await home.commit("g", {"orders": {0: 1}}) == {"orders": {0: ErrorCode.request_timed_out}}
    world.groups.fail_before["fetch_offsets"] = [down]
    assert (await home.fetch("g", None))[0] == ErrorCode.coordinator_load_in_progress
    world.cluster_api.fail_before["read_metadata"] = [down]
    unresolved = await home.commit("g", {"orders": {0: 1}, "new": {0: 1}})
    assert unresolved == {"orders": {0: 0}, "new": {0: ErrorCode.coordinator_load_in_progress}}


async def test_a_group_that_cannot_be_saved_tries_again(home: Coordinating, world: GroupsWorld) -> None:
    joined = await home.join("g", version=3)
    await world.clock.settle()
    world.groups.fail_before["save_group"] = [UnavailableError("down")]
    synced = await home.sync("g", joined.member_id, 1, {joined.member_id: b"all"})
    assert synced.error_code == ErrorCode.coordinator_not_available
    again = await home.join("g", joined.member_id, version=3)
    assert again.generation_id == 2
    assert (await home.sync("g", joined.member_id, 2, {joined.member_id: b"all"})).error_code == 0
    stored = world.groups.saved("g")
    assert (stored.generation, [m.assignment for m in stored.members]) == (2, [b"all"])
    assert stored.members[0].client_host == "/127.0.0.1"


@pytest.mark.parametrize("api_key", [8, 9, 12, 13, 14])
async def test_what_real_clients_sent_is_answered(world: GroupsWorld, api_key: int) -> None:
    for label, request in captured_requests(api_key):
        answer = read_reply(request, await world.home.handlers[api_key](request))
        assert answer.version == request.api_version, label


async def test_joins_of_real_clients_are_answered(world: GroupsWorld) -> None:
    for label, request in captured_requests(11):
        pending = asyncio.ensure_future(world.home.handlers[11](request))
        answer = read_reply(request, await world.clock.run(pending))
        assert answer.error_code in (0, ErrorCode.member_id_required, ErrorCode.unknown_member_id, 16), label


@pytest.mark.requirement("X7")
async def test_in_one_turn_of_the_event_loop_one_member_joins(
    home: Coordinating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join costs time for every member of its group: many at once would stall the loop."""
    turn, joins = 0, list[int]()
    join = ClassicGroup.join

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def counted(group: ClassicGroup, now: float, request: Any, token: Any) -> Any:
        joins.append(turn)
        return join(group, now, request, token)

    await home.join("g", version=5)  # loads the group
    monkeypatch.setattr(ClassicGroup, "join", counted)
    counting = asyncio.create_task(count_turns())
    answers = await asyncio.gather(*(home.join("g", version=5) for _ in range(20)))
    counting.cancel()
    assert {answer.error_code for answer in answers} == {ErrorCode.member_id_required}
    assert len(joins) == 20
    assert len(set(joins)) == 20, "each in another turn"


async def test_reasons_are_one_line_of_limited_length_after_the_checks(
    home: Coordinating, caplog: pytest.LogCaptureFixture
) -> None:
    """One request of 8 MB was 33 MB in the log, and 9,900 lines in one turn of the loop."""
    caplog.set_level("INFO")
    reason = "\x01" * 800
    strangers = [
        LeaveGroupRequest.MemberIdentity(member_id=f"m{number}", group_instance_id=None, reason=reason)
        for number in range(2_000)
    ]
    await call(home.handlers[13], LeaveGroupRequest(group_id="g", members=strangers), 5)
    assert "reason" not in caplog.text, "no member left"
    member = await home.only_member(version=9)
    leaving = [LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=None, reason=reason), *strangers]
    await call(home.handlers[13], LeaveGroupRequest(group_id="g", members=leaving), 5)
    lines = [record.getMessage() for record in caplog.records if "reason" in record.getMessage()]
    assert len(lines) == 1
    assert f"members left: group=g members=1 first={member} reason=" in lines[0]
    assert len(lines[0]) < 2_000
