"""Static members (KIP-345): restarts without a rebalance, fencing, and absence."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_values import GroupState, MemberProtocol, MemberRef
from tests.agent.groups.classic.group_script import Script


@pytest.fixture
def script() -> Script:
    return Script()


def test_a_restarted_static_member_needs_no_rebalance(script: Script) -> None:
    leader, other = script.stable("i-1", "i-2")
    token = script.join("", "i-2")
    assert token not in script.answers  # its new id must be stored first
    state = script.store()
    told = script.joined(token)
    assert (told.code, told.generation, told.leader_id) == (ErrorCode.none, 2, leader)
    assert told.member_id != other
    assert script.is_in(GroupState.STABLE)
    assert [m.member_id for m in state.members] == [leader, told.member_id]
    kept = script.sync(told.member_id, instance_id="i-2")
    assert script.synced(kept).assignment == f"for {other}".encode()
    assert script.heartbeat(other, instance_id="i-2") is ErrorCode.fenced_instance_id
    assert script.heartbeat(leader, instance_id="i-1") is ErrorCode.none


@pytest.mark.parametrize("modern", [True, False])
def test_a_restarted_static_leader_does_not_assign_again(script: Script, modern: bool) -> None:
    leader, other = script.stable("i-1", "i-2")
    token = script.join("", "i-1", can_skip_assignment=modern)
    script.store()
    told = script.joined(token)
    assert told.skip_assignment == modern
    assert told.leader_id == (told.member_id if modern else leader)
    assert {m.member_id for m in told.members} == ({told.member_id, other} if modern else set())
    assert script.group.roster.leader_id == told.member_id


def test_a_restarted_static_member_with_another_protocol_rebalances(script: Script) -> None:
    both = (MemberProtocol("range", b""), MemberProtocol("sticky", b""))
    leader, _ = script.stable("i-1", "i-2", protocols=both)
    script.join("", "i-2", protocols=both[1:])
    assert script.heartbeat(leader, instance_id="i-1") is ErrorCode.rebalance_in_progress


def test_the_old_incarnation_of_a_static_member_is_fenced_while_it_waits(script: Script) -> None:
    leader, old = script.stable("i-1", "i-2")
    waiting = script.join(old, "i-2", protocols=(MemberProtocol("range", b"new"),))
    replacing = script.join("", "i-2")
    assert script.joined(waiting).code is ErrorCode.fenced_instance_id
    script.join(leader, "i-1")
    script.store()
    told = script.joined(replacing)
    assert (told.code, told.generation) == (ErrorCode.none, 3)
    assert script.joined(script.join(old, "i-2")).code is ErrorCode.fenced_instance_id


def test_the_next_coordinator_knows_an_incarnation_with_an_unsaved_generation() -> None:
    """Else it would take it for an impostor of the one before, and its client would give up."""
    script = Script()
    leader, old = script.stable("i-1", "i-2")
    script.join(old, "i-2", protocols=(MemberProtocol("range", b"new"),))  # a rebalance begins
    replacing = script.join("", "i-2")
    script.join(leader, "i-1")
    assert replacing not in script.answers, "no member is answered before it is saved"
    saved = script.store()
    told = script.joined(replacing)
    heir = Script(restored=saved)
    assert heir.group.generation == 2
    assert heir.heartbeat(told.member_id, told.generation, instance_id="i-2") is ErrorCode.illegal_generation
    assert heir.heartbeat(old, 2, instance_id="i-2") is ErrorCode.fenced_instance_id
    assert heir.heartbeat(leader, 2, instance_id="i-1") is ErrorCode.none


def test_an_incarnation_that_cannot_be_saved_is_asked_to_come_again() -> None:
    script = Script()
    leader, old = script.stable("i-1", "i-2")
    script.join(old, "i-2", protocols=(MemberProtocol("range", b"new"),))
    replacing = script.join("", "i-2")
    script.store(ErrorCode.coordinator_not_available)
    assert script.joined(replacing).code is ErrorCode.coordinator_not_available
    again = script.join("", "i-2")
    script.join(leader, "i-1")
    script.store()
    assert script.joined(again).generation == 3


def test_a_static_member_replaced_before_it_synced_is_still_expected(script: Script) -> None:
    leader = script.joined(script.join("", "i-1")).member_id
    follower = script.join("", "i-2")
    script.join(leader, "i-1")
    script.sync(leader, instance_id="i-1")
    script.store()
    replacement = script.join("", "i-2")
    script.store()
    assert script.joined(follower).code is ErrorCode.none
    for _ in range(12):
        script.pass_time(5)
        script.heartbeat(leader, instance_id="i-1")
        script.heartbeat(script.joined(replacement).member_id, instance_id="i-2")
    assert script.is_in(GroupState.PREPARING_REBALANCE)


def test_absent_static_members_keep_their_place_until_their_session_ends(script: Script) -> None:
    leader, absent = script.stable("i-1", "i-2", session=100.0)
    new = script.join(session=100.0)
    again = script.join(leader, "i-1", session=100.0)
    script.pass_time(60)
    assert script.joined(again).leader_id == leader
    assert {m.member_id for m in script.joined(again).members} == {leader, absent, script.joined(new).member_id}


def test_an_absent_static_leader_is_replaced_by_one_who_came(script: Script) -> None:
    leader, other = script.stable("i-1", "i-2", session=100.0)
    again = script.join(other, "i-2", protocols=(MemberProtocol("range", b"new"),), session=100.0)
    script.pass_time(60)
    assert script.joined(again).leader_id == other
    assert {m.member_id for m in script.joined(again).members} == {leader, other}


def test_when_no_static_member_came_the_rebalance_goes_on_waiting(script: Script) -> None:
    _, dynamic = script.stable("i-1", None, session=100.0)
    script.leave(MemberRef(dynamic))
    script.pass_time(60)
    assert script.is_in(GroupState.PREPARING_REBALANCE)
    script.pass_time(40)
    assert script.is_in(GroupState.EMPTY)
