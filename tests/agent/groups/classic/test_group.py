"""The rules of the classic group protocol, one by one."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.roster import PROMISE_SECONDS
from headrace.agent.groups.group_values import GroupState, JoinAnswer, MemberProtocol, MemberRef
from tests.agent.groups.classic.group_script import RANGE, Script


@pytest.fixture
def script() -> Script:
    return Script()


def test_two_members_share_an_assignment(script: Script) -> None:
    leader, follower = script.stable(None, None)
    assert script.is_in(GroupState.STABLE)
    assert script.group.generation == 2
    token = script.sync(follower)
    assert script.synced(token).assignment == f"for {follower}".encode()
    assert script.synced(token).protocol_name == "range"
    assert script.heartbeat(leader) is ErrorCode.none


def test_only_the_leader_learns_the_members(script: Script) -> None:
    first = script.join()
    leader = script.joined(first).member_id
    second = script.join()
    assert second not in script.answers
    assert script.heartbeat(leader) is ErrorCode.rebalance_in_progress
    again = script.join(leader)
    told, follower = script.joined(again), script.joined(second)
    assert told.leader_id == follower.leader_id == leader
    assert {m.member_id for m in told.members} == {leader, follower.member_id}
    assert {m.metadata for m in told.members} == {b"range-subscription"}
    assert follower.members == ()
    assert told.generation == follower.generation == 2


def test_a_client_that_supports_it_gets_its_member_id_first(script: Script) -> None:
    told = script.joined(script.join(id_required=True))
    assert told.code is ErrorCode.member_id_required
    assert told.member_id.startswith("client-")
    joined = script.joined(script.join(told.member_id))
    assert (joined.code, joined.member_id) == (ErrorCode.none, told.member_id)


def test_an_id_that_was_never_used_lapses(script: Script) -> None:
    leader = script.stable(None)[0]
    promised = script.joined(script.join(id_required=True)).member_id
    waiting = script.join()
    again = script.join(leader)
    assert again not in script.answers  # the promised one may still come
    script.pass_time(10)
    assert script.joined(again).code is script.joined(waiting).code is ErrorCode.none
    assert script.joined(script.join(promised)).code is ErrorCode.unknown_member_id


def test_a_long_session_does_not_make_the_group_wait_for_a_lost_id(script: Script) -> None:
    """librdkafka's session is 45 s, and the answer with the id may be lost with the agent that forwarded it."""
    leader = script.stable(None, session=100.0)[0]
    script.joined(script.join(id_required=True, session=100.0))
    again = script.join(leader, session=100.0)
    script.pass_time(PROMISE_SECONDS - 1)
    assert again not in script.answers
    script.pass_time(1)
    assert script.joined(again).code is ErrorCode.none


def test_a_promised_id_may_be_given_back(script: Script) -> None:
    leader = script.stable(None)[0]
    promised = script.joined(script.join(id_required=True)).member_id
    script.join()
    again = script.join(leader)
    (left,) = script.leave(MemberRef(promised))
    assert left.code is ErrorCode.none
    assert script.joined(again).code is ErrorCode.none


def test_the_first_rebalance_waits_for_more_members() -> None:
    script = Script(initial_delay=3.0)
    first = script.join(rebalance=8.0)
    script.pass_time(2.9)
    second = script.join(rebalance=8.0)
    script.pass_time(0.2)  # a member came: delayed once more
    assert first not in script.answers
    script.pass_time(3)  # no member came
    assert script.joined(first).generation == script.joined(second).generation == 1


def test_the_first_rebalance_is_not_delayed_without_limit() -> None:
    script = Script(initial_delay=3.0)
    tokens = [script.join(rebalance=8.0)]
    for _ in range(8):
        script.pass_time(1)
        tokens.append(script.join(rebalance=8.0))
    assert script.joined(tokens[0]).generation == 1


def test_a_member_that_does_not_rejoin_is_left_behind(script: Script) -> None:
    leader, slow = script.stable(None, None)
    new = script.join()
    again = script.join(leader)
    for _ in range(12):
        script.pass_time(5)
        script.heartbeat(slow)
    assert script.joined(again).code is script.joined(new).code is ErrorCode.none
    assert slow not in script.group.roster
    assert script.heartbeat(slow) is ErrorCode.unknown_member_id


def test_a_silent_member_expires_and_the_others_rebalance(script: Script) -> None:
    leader, silent = script.stable(None, None)
    script.pass_time(6)
    assert script.heartbeat(leader) is ErrorCode.none
    script.pass_time(6)
    assert silent not in script.group.roster
    assert script.heartbeat(leader) is ErrorCode.rebalance_in_progress
    assert script.joined(script.join(leader)).generation == 3


def test_the_leaders_silence_makes_another_member_the_leader(script: Script) -> None:
    _, other = script.stable(None, None)
    script.pass_time(6)
    script.heartbeat(other)
    script.pass_time(6)
    told = script.joined(script.join(other))
    assert told.leader_id == other
    assert [m.member_id for m in told.members] == [other]


def test_when_all_are_gone_the_group_is_empty_and_stored_so(script: Script) -> None:
    script.stable(None, None)
    script.pass_time(20)
    assert script.is_in(GroupState.EMPTY)
    stored = script.store()
    assert (stored.members, stored.generation) == ([], 3)
    assert script.group.is_idle()


def test_a_member_that_does_not_fetch_its_assignment_is_removed(script: Script) -> None:
    leader = script.joined(script.join()).member_id
    mute = script.join()
    again = script.join(leader)
    script.sync(leader)
    script.store()
    assert script.is_in(GroupState.STABLE)
    mute_id = script.joined(mute).member_id
    for _ in range(12):
        script.pass_time(5)
        script.heartbeat(leader)
        script.heartbeat(mute_id)
    assert mute_id not in script.group.roster
    assert script.is_in(GroupState.PREPARING_REBALANCE)
    assert script.joined(again).leader_id == leader


def test_a_new_member_gives_up_after_five_minutes(script: Script) -> None:
    leader = script.stable(None, rebalance=1_000.0)[0]
    waiting = script.join()
    for _ in range(60):
        script.pass_time(5)
        script.heartbeat(leader)
    assert script.joined(waiting).code is ErrorCode.unknown_member_id


def test_a_lost_join_answer_is_given_again(script: Script) -> None:
    first = script.joined(script.join())
    again = script.joined(script.join(first.member_id))
    assert again == first
    script.sync(first.member_id, {first.member_id: b"all"})
    script.store()
    other = script.join()
    script.joined(script.join(first.member_id))
    follower = script.joined(other).member_id
    script.sync(first.member_id)
    script.store()
    told = script.joined(script.join(follower))
    assert (told.generation, told.members) == (2, ())
    assert script.is_in(GroupState.STABLE)


def test_a_leader_may_force_a_rebalance_and_a_subscription_change_does(script: Script) -> None:
    leader, follower = script.stable(None, None)
    script.join(leader)
    assert script.is_in(GroupState.PREPARING_REBALANCE)
    script.join(follower)
    script.sync(leader)
    script.store()
    assert script.is_in(GroupState.STABLE)
    script.join(follower, protocols=(MemberProtocol("range", b"other"),))
    assert script.heartbeat(leader) is ErrorCode.rebalance_in_progress


def test_the_protocol_that_most_prefer_among_those_all_support(script: Script) -> None:
    a, b, c = (MemberProtocol(name, name.encode()) for name in "abc")
    first = script.joined(script.join(protocols=(a, b, c))).member_id
    others = [script.join(protocols=(b, a)), script.join(protocols=(c, b, a))]  # c is not shared: it votes for b
    told = script.joined(script.join(first, protocols=(a, b, c)))
    assert {told.protocol_name, *(script.joined(token).protocol_name for token in others)} == {"b"}
    assert {m.metadata for m in told.members} == {b"b"}


@pytest.mark.parametrize(
    ("protocols", "protocol_type"),
    [((), "consumer"), (RANGE, ""), (RANGE, "connect"), ((MemberProtocol("x", b""),), "consumer")],
)
def test_who_speaks_another_protocol_stays_out(
    script: Script, protocols: tuple[MemberProtocol, ...], protocol_type: str
) -> None:
    script.stable(None)
    token = script.join(protocols=protocols, protocol_type=protocol_type)
    assert script.joined(token).code is ErrorCode.inconsistent_group_protocol
    assert script.is_in(GroupState.STABLE)


def test_requests_of_unknown_members_and_of_other_generations(script: Script) -> None:
    member = script.stable(None)[0]
    assert script.heartbeat("nobody") is ErrorCode.unknown_member_id
    assert script.heartbeat(member, generation=0) is ErrorCode.illegal_generation
    assert script.synced(script.sync("nobody")).code is ErrorCode.unknown_member_id
    assert script.synced(script.sync(member, generation=9)).code is ErrorCode.illegal_generation
    wrong = script.sync(member, protocol_name="sticky")
    assert script.synced(wrong).code is ErrorCode.inconsistent_group_protocol
    assert script.joined(script.join("nobody")).code is ErrorCode.unknown_member_id
    assert [d.code for d in script.leave(MemberRef("nobody"))] == [ErrorCode.unknown_member_id]


def test_syncs_wait_for_the_store_and_fail_with_it(script: Script) -> None:
    leader = script.joined(script.join()).member_id
    early = script.sync(leader, {leader: b"all"})
    assert early not in script.answers
    assert script.heartbeat(leader) is ErrorCode.none
    script.store(ErrorCode.coordinator_not_available)
    assert script.synced(early).code is ErrorCode.coordinator_not_available
    assert script.heartbeat(leader) is ErrorCode.rebalance_in_progress
    assert script.joined(script.join(leader)).generation == 2


def test_a_rebalance_overtakes_a_store(script: Script) -> None:
    leader = script.joined(script.join()).member_id
    early = script.sync(leader, {leader: b"all"})
    other = script.join()
    assert script.synced(early).code is ErrorCode.rebalance_in_progress
    script.store()
    assert script.is_in(GroupState.PREPARING_REBALANCE)
    script.join(leader)
    assert script.joined(other).generation == 2


def test_a_member_that_leaves_while_waiting_is_answered(script: Script) -> None:
    leader, follower = script.stable(None, None)
    script.join(leader)
    script.join(follower)
    pending = script.sync(follower)
    script.leave(MemberRef(follower))
    assert script.synced(pending).code is ErrorCode.unknown_member_id
    rejoining = script.join()
    (departure,) = script.leave(MemberRef(leader))
    assert departure.code is ErrorCode.none
    assert script.joined(rejoining).code is ErrorCode.none


def test_several_leave_in_one_request(script: Script) -> None:
    one, two = script.stable(None, "i-2")
    codes = [d.code for d in script.leave(MemberRef(one), MemberRef("", "i-2"), MemberRef("", "i-9"))]
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_member_id]
    assert two not in script.group.roster
    assert script.is_in(GroupState.EMPTY)


def test_offset_commits_are_fenced(script: Script) -> None:
    assert script.commit() is ErrorCode.none  # the group has no members: a consumer with manual assignment
    member = script.stable(None)[0]
    assert script.commit() is ErrorCode.unknown_member_id
    assert script.commit(member, 0) is ErrorCode.illegal_generation
    assert script.commit(member, 1) is ErrorCode.none
    assert script.commit("nobody", 1) is ErrorCode.unknown_member_id
    script.join()
    assert script.commit(member, 1) is ErrorCode.none  # it may commit before it joins again
    script.join(member)
    assert script.commit(member, 2) is ErrorCode.rebalance_in_progress


def test_the_next_coordinator_carries_the_members_on(script: Script) -> None:
    one = script.joined(script.join()).member_id
    script.sync(one, {one: b"all"})
    state = script.store()
    heir = Script(restored=state)
    assert heir.is_in(GroupState.STABLE)
    assert heir.heartbeat(one, 1) is ErrorCode.none
    assert heir.commit(one, 1) is ErrorCode.none
    heir.pass_time(9.9)
    assert one in heir.group.roster
    assert heir.synced(heir.sync(one)).assignment == b"all"
    assert heir.joined(heir.join(one)).generation == 2  # the leader may still rebalance
    assert heir.heartbeat(one, 1) is ErrorCode.illegal_generation


def test_a_store_that_ends_after_closing_changes_nothing(script: Script) -> None:
    leader = script.joined(script.join()).member_id
    pending = script.sync(leader, {leader: b"all"})
    script.close()
    assert script.synced(pending).code is ErrorCode.not_coordinator
    script.store()
    assert script.is_in(GroupState.DEAD)


def test_closing_answers_all_waiting_members(script: Script) -> None:
    leader, other = script.stable("i-1", "i-2")
    held = script.join("", "i-2")
    joining = script.join()
    script.close()
    for token in (held, joining):
        answer = script.joined(token)
        assert isinstance(answer, JoinAnswer)
        assert answer.code is ErrorCode.not_coordinator
    assert script.heartbeat(leader, instance_id="i-1") is ErrorCode.not_coordinator
    assert script.joined(script.join()).code is ErrorCode.not_coordinator
    assert script.synced(script.sync(other)).code is ErrorCode.not_coordinator
    assert script.leave(MemberRef(leader))[0].code is ErrorCode.not_coordinator
    script.saves.clear()


def test_a_full_group_accepts_no_more_members() -> None:
    script = Script(max_size=2)
    first, _ = script.stable(None, "i-2")
    refused = script.join()
    assert script.joined(refused).code is ErrorCode.group_max_size_reached
    assert script.heartbeat(first) is ErrorCode.none, "no member has to join again for it"
    restarted = script.join(instance_id="i-2")
    script.store()
    assert script.joined(restarted).code is ErrorCode.none, "an instance keeps its place"
    script.leave(MemberRef(first))
    assert script.join() not in script.answers


def test_after_a_lower_limit_the_quickest_get_in() -> None:
    script = Script()
    script.stable(None, None, None)
    small = Script(max_size=2, restored=script.group.snapshot())
    one, two, three = (member.member_id for member in small.group.roster)
    small.join(two, protocols=(MemberProtocol("range", b"changed"),))
    small.join(three)
    assert small.joined(small.join(one)).code is ErrorCode.group_max_size_reached
    small.pass_time(60)
    assert {member.member_id for member in small.group.roster} == {two, three}
