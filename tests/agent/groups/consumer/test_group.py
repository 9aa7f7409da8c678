"""The rules of a consumer group, one by one, as KIP-848 and Kafka's coordinator have them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.members import ConsumerHeartbeat
from headrace.agent.groups.consumer.saved import decode
from headrace.agent.groups.group_values import MemberRef
from headrace.agent.groups.members.member import LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH, MemberHeartbeatAnswer
from headrace.agent.groups.members.reconciliation import MemberState
from headrace.storage.errors import CorruptError, InvalidError
from tests.agent.groups.consumer.consumer_world import REBALANCE, SESSION, World


@pytest.fixture
def world() -> World:
    """A topic `t` with four partitions."""
    world = World()
    world.topics.put("t", 4)
    return world


def full(world: World, *names: str) -> frozenset[int]:
    return world.topics.keys_of(names or ("t",))


def settled(world: World, *member_ids: str) -> dict[str, MemberHeartbeatAnswer]:
    """Members that joined one after another; with the last assignment that each received."""
    told: dict[str, MemberHeartbeatAnswer] = {}
    for member_id in member_ids:
        told[member_id] = world.say(member_id, 0)
        for _ in range(4):
            for each, known in told.items():
                answer = world.say(each, known.member_epoch, owned=known.assigned)
                assert answer.code is ErrorCode.none
                told[each] = answer if answer.assigned is not None else known_at(known, answer)
    assert world.group.state_name == "Stable"
    return told


def known_at(known: MemberHeartbeatAnswer, answer: MemberHeartbeatAnswer) -> MemberHeartbeatAnswer:
    return MemberHeartbeatAnswer(answer.code, answer.member_id, answer.member_epoch, known.assigned)


def test_the_first_member_gets_everything_at_once(world: World) -> None:
    answer = world.say("a", 0)
    assert (answer.code, answer.member_epoch, answer.assigned) == (ErrorCode.none, 1, full(world))
    assert world.group.state_name == "Stable"


def test_a_partition_moves_only_after_it_was_given_up(world: World) -> None:
    everything = world.say("a", 0).assigned
    newcomer = world.say("b", 0)
    assert (newcomer.member_epoch, newcomer.assigned) == (2, frozenset())
    told = world.say("a", 1)
    assert told.member_epoch == 1, "it keeps its epoch until it has revoked"
    assert everything is not None
    assert told.assigned is not None
    assert len(told.assigned) == 2
    assert world.say("b", 2).assigned is None, "nothing is free yet"
    assert world.say("a", 1, owned=everything).assigned is None, "it still owns what it shall give up"
    assert world.say("a", 1, owned=told.assigned).member_epoch == 2
    assert world.say("b", 2).assigned == everything - told.assigned
    assert world.group.state_name == "Stable"


def test_a_heartbeat_that_changes_nothing_stores_nothing(world: World) -> None:
    epoch = world.say("a", 0).member_epoch
    before = world.durable
    token = world.heartbeat(ConsumerHeartbeat("a", epoch))
    assert world.answers[token] == MemberHeartbeatAnswer(ErrorCode.none, "a", epoch)
    assert not world.saves
    assert world.durable is before


def test_no_member_is_answered_before_the_save(world: World) -> None:
    first = world.heartbeat(joining("a"))
    second = world.heartbeat(joining("b"))
    assert not world.answers
    world.store()
    assert first in world.answers
    assert second not in world.answers, "its change came after that save began"
    world.store()
    assert second in world.answers
    assert not world.saves


def joining(member_id: str, **more: object) -> ConsumerHeartbeat:
    values = {"rebalance_timeout": REBALANCE, "topic_names": frozenset({"t"}), "owned": frozenset(), **more}
    return ConsumerHeartbeat(member_id, 0, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("happened", [True, False])
def test_a_save_that_failed_takes_the_group_back_to_what_is_stored(world: World, happened: bool) -> None:
    world.say("a", 0)
    token = world.heartbeat(joining("b"))
    world.store(ErrorCode.coordinator_not_available, happened=happened)
    answer = world.answers[token]
    assert isinstance(answer, MemberHeartbeatAnswer)
    assert answer.code is ErrorCode.coordinator_not_available
    assert {member.member_id for member in world.group.roster} == ({"a", "b"} if happened else {"a"})
    assert world.say("a", 1).code is ErrorCode.none
    assert world.say("b", 0).code is ErrorCode.none


def test_epochs_that_are_not_the_members_own_are_fenced(world: World) -> None:
    settled(world, "a", "b")
    epoch = world.say("a", 2).member_epoch
    assert world.say("a", epoch + 1).code is ErrorCode.fenced_member_epoch
    assert world.say("a", epoch - 1).code is ErrorCode.fenced_member_epoch, "it does not say what it owns"
    assert world.say("a", epoch - 1, owned=full(world)).code is ErrorCode.fenced_member_epoch
    assert world.say("nobody", 3).code is ErrorCode.unknown_member_id


def test_a_member_that_missed_an_answer_may_show_the_epoch_before_it(world: World) -> None:
    world.say("a", 0)
    world.topics.put("u", 2)
    world.say("b", 0, topic_names=frozenset({"u"}))
    world.heartbeat(ConsumerHeartbeat("a", 1))  # brings it to epoch 2, and is lost
    answer = world.say("a", 1, owned=full(world), rebalance_timeout=REBALANCE, topic_names=frozenset({"t"}))
    assert (answer.code, answer.member_epoch, answer.assigned) == (ErrorCode.none, 2, full(world))


def test_a_full_request_gets_a_full_response(world: World) -> None:
    told = settled(world, "a")["a"]
    wishes = {"rebalance_timeout": REBALANCE, "topic_names": frozenset({"t"})}
    assert world.say("a", told.member_epoch, **wishes).assigned is None
    assert world.say("a", told.member_epoch, owned=told.assigned, **wishes).assigned == told.assigned


def test_a_member_joins_again_under_its_own_id(world: World) -> None:
    """It lost everything, its partitions are still assigned to it, and no other member is affected."""
    told = settled(world, "a", "b")
    group_epoch = world.group.target.group_epoch
    answer = world.say("a", 0)
    assert (answer.code, answer.assigned) == (ErrorCode.none, told["a"].assigned)
    assert world.group.target.group_epoch == group_epoch


def test_who_leaves_frees_its_partitions(world: World) -> None:
    told = settled(world, "a", "b")
    assert world.say("a", LEAVE_EPOCH).member_epoch == LEAVE_EPOCH
    assert world.group.state_name == "Assigning"
    answer = world.say("b", told["b"].member_epoch)
    assert answer.assigned == full(world)
    assert world.say("b", LEAVE_EPOCH).code is ErrorCode.none
    assert (world.group.state_name, world.group.is_idle()) == ("Empty", True)
    assert world.say("b", LEAVE_EPOCH).code is ErrorCode.unknown_member_id


def test_who_is_silent_for_a_session_is_given_up(world: World) -> None:
    told = settled(world, "a", "b")
    world.pass_time(SESSION - 1)
    world.say("b", told["b"].member_epoch)
    world.pass_time(1)
    world.store_all()
    assert [member.member_id for member in world.group.roster] == ["b"]
    assert world.say("a", told["a"].member_epoch).code is ErrorCode.unknown_member_id


def test_who_does_not_revoke_in_its_rebalance_timeout_is_given_up(world: World) -> None:
    everything = world.say("a", 0, rebalance_timeout=20.0).assigned
    world.say("b", 0)
    assert len(world.say("a", 1).assigned or ()) == 2
    world.pass_time(19)
    assert world.say("a", 1, owned=everything).code is ErrorCode.none, "heartbeats are not enough"
    world.pass_time(1)
    assert world.say("a", 1).code is ErrorCode.unknown_member_id
    assert world.say("b", 2).assigned == full(world)


def test_a_deadline_is_never_overslept(world: World) -> None:
    world.say("a", 0)
    deadline = world.group.next_deadline()
    assert deadline is not None
    assert deadline <= SESSION
    world.pass_time(SESSION)
    assert world.group.next_deadline() is None


def test_a_static_member_comes_back_to_its_own(world: World) -> None:
    told = settled(world, "b")
    first = world.say("a1", 0, instance_id="i")
    world.say("b", told["b"].member_epoch)
    kept = world.group.target.of("b")
    world.say("b", told["b"].member_epoch, owned=kept)
    share = world.say("a1", first.member_epoch).assigned
    assert share == full(world) - kept
    assert world.say("a1", LEAVE_FOR_A_WHILE_EPOCH, instance_id="i").member_epoch == LEAVE_FOR_A_WHILE_EPOCH
    group_epoch = world.group.target.group_epoch
    assert world.say("b", first.member_epoch).assigned is None, "nothing moves while it is away"
    back = world.say("a2", 0, instance_id="i")
    assert (back.code, back.assigned, back.member_epoch) == (ErrorCode.none, share, group_epoch)
    assert world.group.target.group_epoch == group_epoch, "no rebalance"
    assert world.say("a1", first.member_epoch, instance_id="i").code is ErrorCode.fenced_instance_id


def test_a_static_member_that_stays_away_is_given_up(world: World) -> None:
    world.say("a", 0, instance_id="i")
    world.say("a", LEAVE_FOR_A_WHILE_EPOCH, instance_id="i")
    world.pass_time(SESSION)
    world.store_all()
    assert world.group.is_idle()


def test_an_instance_id_in_use_is_not_released(world: World) -> None:
    epoch = world.say("a", 0, instance_id="i").member_epoch
    assert world.say("b", 0, instance_id="i").code is ErrorCode.unreleased_instance_id
    assert world.say("b", epoch, instance_id="i").code is ErrorCode.fenced_instance_id
    assert world.say("b", LEAVE_EPOCH, instance_id="i").code is ErrorCode.fenced_instance_id
    assert world.say("b", 4, instance_id="j").code is ErrorCode.unknown_member_id
    assert world.say("a", 0, instance_id="i").code is ErrorCode.none, "itself may join again"
    assert world.say("a", LEAVE_EPOCH, instance_id="i").code is ErrorCode.none


def test_a_group_can_be_full() -> None:
    world = World(group_consumer_max_size=1)
    world.topics.put("t", 1)
    epoch = world.say("a", 0).member_epoch
    assert world.say("b", 0).code is ErrorCode.group_max_size_reached
    assert world.say("a", epoch).code is ErrorCode.none


def test_topics_that_come_grow_and_go_change_the_target(world: World) -> None:
    world.say("a", 0, topic_names=frozenset({"t", "later"}))
    world.topics.put("later", 2)
    assert world.say("a", 1).assigned == full(world, "t", "later")
    world.topics.put("t", 6)
    grown = world.say("a", 2)
    assert grown.assigned == full(world, "t", "later")
    assert len(grown.assigned) == 8
    world.topics.delete("t")
    assert world.say("a", 3).assigned == full(world, "later")
    assert world.say("a", 3, owned=full(world, "later")).member_epoch == 4
    world.topics.put("other", 1)
    assert world.say("a", 4) == MemberHeartbeatAnswer(ErrorCode.none, "a", 4), "no member subscribes to it"


def test_patterns_follow_the_topics_that_match(world: World) -> None:
    answer = world.say("a", 0, topic_names=frozenset(), topic_pattern="t.*")
    assert answer.assigned == full(world)
    world.topics.put("t2", 1)
    world.topics.put("x", 1)
    assert world.say("a", 1).assigned == full(world, "t", "t2")
    assert world.group.subscribed_topics() == {"t", "t2"}


def test_most_votes_choose_the_assignor(world: World) -> None:
    world.say("a", 0, assignor="range")
    assert world.group.target.assignor(world.group.roster) == "range"
    world.say("b", 0)
    assert world.group.target.assignor(world.group.roster) == "range", "who asks for none has no vote"
    world.say("c", 0, assignor="uniform")
    assert world.group.target.assignor(world.group.roster) == "uniform", "of equals, the first of the settings"


def test_a_new_coordinator_carries_on_without_a_rebalance(world: World) -> None:
    told = settled(world, "a", "b")
    before = world.group.snapshot()
    world.move()
    assert world.group.snapshot() == before
    for member_id, known in told.items():
        answer = world.say(member_id, known.member_epoch)
        assert answer == MemberHeartbeatAnswer(ErrorCode.none, member_id, known.member_epoch)
    assert not world.saves
    world.pass_time(SESSION + 1)
    world.store_all()
    assert world.group.is_idle(), "sessions run on from when it was restored"


def test_a_new_coordinator_carries_on_in_the_middle_of_a_reconciliation(world: World) -> None:
    everything = world.say("a", 0).assigned
    world.say("b", 0)
    kept = world.say("a", 1).assigned
    world.move()
    assert world.group.state_name == "Reconciling"
    assert world.say("b", 2).assigned is None
    assert kept is not None
    assert everything is not None
    assert world.say("a", 1, owned=kept).member_epoch == 2
    assert world.say("b", 2).assigned == everything - kept


def test_commits_and_reads_of_offsets_name_the_epoch(world: World) -> None:
    assert world.group.check_commit(0.0, MemberRef("", None, -1), 9) is ErrorCode.none, "an empty group's admin"
    epoch = world.say("a", 0).member_epoch

    def commit(member_id: str, generation: int, version: int = 9) -> ErrorCode:
        return world.group.check_commit(0.0, MemberRef(member_id, None, generation), version)

    assert commit("a", epoch) is ErrorCode.none
    assert commit("a", epoch - 1) is ErrorCode.stale_member_epoch
    assert commit("a", epoch + 1) is ErrorCode.stale_member_epoch
    assert commit("a", epoch, version=8) is ErrorCode.unsupported_version
    assert commit("b", epoch) is ErrorCode.unknown_member_id
    assert commit("", -1) is ErrorCode.unknown_member_id
    assert world.group.check_fetch(MemberRef("a", None, epoch)) is ErrorCode.none
    assert world.group.check_fetch(MemberRef("a", None, epoch + 1)) is ErrorCode.stale_member_epoch
    assert world.group.check_fetch(MemberRef("b", None, epoch)) is ErrorCode.unknown_member_id
    assert world.group.check_fetch(MemberRef("", None, -1)) is ErrorCode.none


def test_a_commit_of_an_earlier_epoch_counts_for_partitions_that_stayed(world: World) -> None:
    """KIP-1251. What went to another member and came back since then is not the member's of that epoch."""

    def commit(member_id: str, epoch: int, keys: Iterable[int]) -> ErrorCode:
        return world.group.check_commit(0.0, MemberRef(member_id, None, epoch), 9, list(keys))

    everything = world.say("a", 0).assigned
    world.say("b", 0)
    kept = world.say("a", 1).assigned
    assert everything is not None
    assert kept is not None
    assert commit("a", 1, everything) is ErrorCode.none, "it may commit what it gives up"
    assert world.say("a", 1, owned=kept).member_epoch == 2
    given = world.say("b", 2).assigned
    assert given == everything - kept
    for _ in range(2):
        assert commit("a", 1, kept) is commit("a", 2, kept) is ErrorCode.none
        assert commit("a", 1, everything) is commit("a", 1, ()) is ErrorCode.stale_member_epoch
        assert commit("a", 0, kept) is commit("a", 3, kept) is ErrorCode.stale_member_epoch
        assert commit("b", 1, given) is ErrorCode.stale_member_epoch, "it got them with epoch 2"
        world.move()
    world.say("b", LEAVE_EPOCH)
    assert world.say("a", 2).assigned == everything
    assert commit("a", 1, kept) is commit("a", 2, kept) is commit("a", 3, everything) is ErrorCode.none
    assert commit("a", 1, given) is commit("a", 2, given) is ErrorCode.stale_member_epoch


def test_partitions_that_an_earlier_release_stored_count_from_the_epoch_of_the_upgrade(world: World) -> None:
    everything = world.say("a", 0).assigned
    world.say("b", 0)
    kept = world.say("a", 1).assigned
    assert world.say("a", 1, owned=kept).member_epoch == 2
    assert world.durable is not None
    state = decode(world.durable.data)
    old = msgspec.structs.replace(state, members=[msgspec.structs.replace(each, since={}) for each in state.members])
    world.durable = old.record()
    world.move()
    assert everything is not None
    assert kept is not None
    assert world.group.check_commit(0.0, MemberRef("a", None, 1), 9, list(kept)) is ErrorCode.stale_member_epoch
    world.say("b", LEAVE_EPOCH)
    assert world.say("a", 2).member_epoch == 3
    assert world.group.check_commit(0.0, MemberRef("a", None, 2), 9, list(kept)) is ErrorCode.none
    assert world.group.check_commit(0.0, MemberRef("a", None, 1), 9, list(kept)) is ErrorCode.stale_member_epoch


def test_a_closed_group_only_answers_that_it_is_closed(world: World) -> None:
    token = world.heartbeat(joining("a"))
    world.perform(world.group.close(ErrorCode.not_coordinator))
    assert world.answers[token] == MemberHeartbeatAnswer(ErrorCode.not_coordinator, "a")
    assert world.say("a", 1).code is ErrorCode.not_coordinator
    assert world.group.check_commit(0.0, MemberRef("a", None, 1), 9) is ErrorCode.not_coordinator
    assert world.group.check_fetch(MemberRef("a", None, 1)) is ErrorCode.not_coordinator
    assert world.group.state_name == "Dead"


def test_what_is_stored_is_read_back_or_refused(world: World) -> None:
    world.say("a", 0, instance_id="i", rack_id="r", topic_pattern="t.*", assignor="range")
    world.say("b", 0)
    world.say("a", 1)
    assert world.durable is not None
    state = decode(world.durable.data)
    assert state == world.group.snapshot()
    assert {member.member_id: member.state for member in state.members}["a"] is MemberState.UNREVOKED
    with pytest.raises(CorruptError):
        decode(world.durable.data[:-3])
    with pytest.raises(InvalidError):
        decode(state.__class__(0, 0, b"", "Empty", [], [], format=2).record().data)
