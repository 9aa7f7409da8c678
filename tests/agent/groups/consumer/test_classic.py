"""Classic members inside a consumer group, and the two conversions around them."""

from __future__ import annotations

import random

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.classic.saved import SavedClassicMember, SavedGroup, decode
from headrace.agent.groups.consumer.conversion import from_classic, read_assignment, read_subscription, write_assignment
from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.members import ConsumerHeartbeat
from headrace.agent.groups.group_values import (
    GroupState,
    JoinAnswer,
    JoinRequest,
    MemberProtocol,
    MemberRef,
    Save,
    SyncAnswer,
    SyncRequest,
)
from headrace.agent.groups.members.member import LEAVE_EPOCH, MemberHeartbeatAnswer
from headrace.agent.groups.members.reconciliation import MemberState
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.log.image import MetadataImage
from tests.agent.groups.consumer.consumer_world import REBALANCE, SESSION, World
from tests.protocol.embedded_bytes import assignment_bytes, subscription_bytes


@pytest.fixture
def world() -> World:
    """A topic `t` with four partitions."""
    world = World()
    world.topics.put("t", 4)
    return world


def join(
    world: World,
    member_id: str,
    owned: list[int] | None = None,
    *,
    instance_id: str | None = None,
    protocols: tuple[str, ...] = ("cooperative-sticky",),
    metadata: bytes | None = None,
    protocol_type: str = "consumer",
) -> JoinAnswer:
    given = subscription_bytes(["t"], {"t": owned} if owned else {}) if metadata is None else metadata
    request = JoinRequest(
        MemberRef(member_id, instance_id),
        "client",
        "/host",
        SESSION,
        REBALANCE,
        protocol_type,
        tuple(MemberProtocol(name, given) for name in protocols),
    )
    token = world.token()
    world.perform(world.group.classic_protocol.join(world.now, request, token))
    world.store_all()
    answer = world.answers[token]
    assert isinstance(answer, JoinAnswer)
    return answer


def sync(world: World, member_id: str, generation: int, *, protocol_name: str | None = None) -> SyncAnswer:
    token = world.token()
    request = SyncRequest(MemberRef(member_id, None, generation), {}, "consumer", protocol_name)
    world.perform(world.group.classic_protocol.sync(world.now, request, token))
    world.store_all()
    answer = world.answers[token]
    assert isinstance(answer, SyncAnswer)
    return answer


def heartbeat(world: World, member_id: str, generation: int) -> ErrorCode:
    return world.group.classic_protocol.heartbeat(world.now, MemberRef(member_id, None, generation))


def given_by(world: World, answer: SyncAnswer) -> list[int]:
    assert answer.code is ErrorCode.none
    keys = read_assignment(answer.assignment, world.topics.topics(()))
    assert keys is not None
    return sorted(key & 0xFFFFFF for key in keys)


def test_a_classic_member_shares_the_group_with_a_new_one(world: World) -> None:
    """The whole exchange: it must join again to revoke, acknowledges by joining, and continues."""
    first = join(world, "k")
    assert (first.code, first.generation, first.leader_id, first.members) == (ErrorCode.none, 1, "", ())
    assert given_by(world, sync(world, "k", 1)) == [0, 1, 2, 3]
    assert heartbeat(world, "k", 1) is ErrorCode.none
    assert world.say("new", 0).assigned == frozenset()
    assert heartbeat(world, "k", 1) is ErrorCode.rebalance_in_progress
    told = join(world, "k", [0, 1, 2, 3])
    assert told.generation == 1, "it has to give partitions up first"
    kept = given_by(world, sync(world, "k", 1))
    assert len(kept) == 2
    assert heartbeat(world, "k", 1) is ErrorCode.rebalance_in_progress
    assert world.say("new", 2).assigned is None, "not yet"
    assert join(world, "k", kept).generation == 2
    assert given_by(world, sync(world, "k", 2)) == kept
    assert world.say("new", 2).assigned == world.topics.keys_of(["t"]) - world.group.target.of("k")
    assert heartbeat(world, "k", 2) is ErrorCode.none
    assert world.group.state_name == "Stable"


def test_a_classic_member_rejoins_when_partitions_become_free(world: World) -> None:
    everything = world.say("new", 0).assigned
    assert join(world, "k").generation == 2
    assert given_by(world, sync(world, "k", 2)) == []
    assert heartbeat(world, "k", 2) is ErrorCode.none, "nothing is free yet"
    kept = world.say("new", 1).assigned
    assert kept is not None
    assert everything is not None
    world.say("new", 1, owned=kept)
    assert heartbeat(world, "k", 2) is ErrorCode.rebalance_in_progress
    assert join(world, "k").generation == 2
    assert len(given_by(world, sync(world, "k", 2))) == 2


def test_what_a_lagging_coordinator_does_not_know_is_no_sign_of_a_revocation(world: World) -> None:
    """The member still owns partitions of a topic that is new: they are not taken for given up."""
    topics = world.topics.by_name
    world.topics.put("u", 1)
    metadata = subscription_bytes(["t", "u"], {})
    join(world, "k", metadata=metadata)
    sync(world, "k", 1)
    world.say("new", 0)
    join(world, "k", metadata=subscription_bytes(["t", "u"], {"t": [0, 1, 2, 3], "u": [0]}))
    before = world.group.roster.get("k")
    assert before is not None
    assert before.state is MemberState.UNREVOKED
    world.topics.by_name = topics
    owned = sorted(key & 0xFFFFFF for key in before.assigned & world.topics.keys_of(["t"]))
    join(world, "k", metadata=subscription_bytes(["t", "u"], {"t": owned, "u": [0]}))
    after = world.group.roster.get("k")
    assert after is not None
    assert after.holds == before.holds


def test_classic_members_rejoin_when_topics_grow(world: World) -> None:
    """None of them leads, so none of them watches."""
    generation = join(world, "k").generation
    sync(world, "k", generation)
    world.topics.put("t", 6)
    world.perform(world.group.metadata_changed(world.now, MetadataImage()))
    assert heartbeat(world, "k", generation) is ErrorCode.rebalance_in_progress
    assert join(world, "k", [0, 1, 2, 3]).generation == generation + 1
    assert given_by(world, sync(world, "k", generation + 1)) == [0, 1, 2, 3, 4, 5]
    world.topics.put("other", 1)
    world.perform(world.group.metadata_changed(world.now, MetadataImage()))
    assert heartbeat(world, "k", generation + 1) is ErrorCode.none


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_embedded_protocol_is_read_and_written(world: World, version: int) -> None:
    metadata = subscription_bytes(["t", "u"], {"t": [2, 1]}, version=version)
    subscription = read_subscription((MemberProtocol("range", metadata),))
    assert subscription is not None
    assert subscription.topic_names == {"t", "u"}
    assert subscription.owned == ((("t", (2, 1)),) if version else ())
    assert subscription.rack_id == ("rack-1" if version == 3 else None)
    partitions = world.topics.keys_of(["t"])
    written = write_assignment((MemberProtocol("range", metadata),), partitions, world.topics.topics(()))
    assert written == assignment_bytes({"t": [0, 1, 2, 3]}, version=version)
    assert read_assignment(written, world.topics.topics(())) == partitions


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\1\0\0\0\5", b"\xff\xff" + b"\0" * 8, b"custom assignor"])
def test_what_is_no_subscription_is_refused(world: World, metadata: bytes) -> None:
    assert join(world, "k", metadata=metadata).code is ErrorCode.inconsistent_group_protocol


def test_a_newer_subscription_is_read_as_the_newest_known(world: World) -> None:
    metadata = subscription_bytes(["t"], version=3).replace(b"\0\3", b"\0\7", 1) + b"more"
    assert join(world, "k", metadata=metadata).code is ErrorCode.none


def test_classic_members_keep_a_protocol_in_common(world: World) -> None:
    join(world, "k", protocols=("range", "sticky"))
    assert join(world, "l", protocols=("roundrobin",)).code is ErrorCode.inconsistent_group_protocol
    assert join(world, "l", protocol_type="connect").code is ErrorCode.inconsistent_group_protocol
    assert join(world, "l", protocols=()).code is ErrorCode.inconsistent_group_protocol
    assert join(world, "l", protocols=("sticky",)).code is ErrorCode.none


def test_generations_and_protocols_are_checked(world: World) -> None:
    generation = join(world, "k").generation
    assert sync(world, "k", generation + 1).code is ErrorCode.illegal_generation
    assert sync(world, "k", generation, protocol_name="range").code is ErrorCode.inconsistent_group_protocol
    assert sync(world, "nobody", generation).code is ErrorCode.unknown_member_id
    assert heartbeat(world, "k", generation - 1) is ErrorCode.illegal_generation
    world.say("new", 0)
    assert heartbeat(world, "new", 2) is ErrorCode.unknown_member_id, "it does not speak that protocol"
    assert sync(world, "k", generation).code is ErrorCode.rebalance_in_progress
    assert world.group.check_commit(0.0, MemberRef("k", None, generation), 8) is ErrorCode.none
    assert world.group.check_commit(0.0, MemberRef("k", None, 9), 8) is ErrorCode.illegal_generation


def test_a_member_without_an_id_is_given_one_first(world: World) -> None:
    answer = join(world, "")
    assert answer.code is ErrorCode.member_id_required
    assert answer.member_id.startswith("client-")
    assert world.group.is_idle()
    assert join(world, answer.member_id).code is ErrorCode.none


def test_a_static_classic_member_comes_back_to_its_own(world: World) -> None:
    first = join(world, "", instance_id="i")
    assert first.code is ErrorCode.none
    everything = world.group.target.of(first.member_id)
    again = join(world, "", instance_id="i")
    assert (again.code, again.generation) == (ErrorCode.none, first.generation)
    assert world.group.target.of(again.member_id) == everything
    assert join(world, first.member_id, instance_id="i").code is ErrorCode.fenced_instance_id
    assert join(world, "x", instance_id="j").code is ErrorCode.unknown_member_id


def test_a_consumer_takes_the_place_of_a_classic_instance(world: World) -> None:
    """A static member is restarted with the new protocol: its instance id needs no release."""
    join(world, "", instance_id="i")
    answer = world.say("new", 0, instance_id="i")
    assert (answer.code, answer.assigned) == (ErrorCode.none, world.topics.keys_of(["t"]))


def test_a_member_that_does_not_rejoin_is_removed(world: World) -> None:
    generation = join(world, "k").generation
    sync(world, "k", generation)
    world.say("new", 0)
    for _ in range(3):
        assert heartbeat(world, "k", generation) is ErrorCode.rebalance_in_progress
        world.say("new", 2)
        world.pass_time(REBALANCE / 3)
    assert heartbeat(world, "k", generation) is ErrorCode.unknown_member_id


def test_who_joined_and_does_not_sync_is_given_up(world: World) -> None:
    generation = join(world, "k").generation
    world.pass_time(REBALANCE / 2)
    assert heartbeat(world, "k", generation) is ErrorCode.none
    world.pass_time(REBALANCE / 2)
    assert heartbeat(world, "k", generation) is ErrorCode.unknown_member_id


def test_classic_members_leave(world: World) -> None:
    join(world, "k")
    static = join(world, "", instance_id="i").member_id
    world.say("new", 0)
    refs = [MemberRef("k"), MemberRef("new"), MemberRef("", "i"), MemberRef(static, "i"), MemberRef("nobody")]
    departures, effects = world.group.classic_protocol.leave(world.now, refs)
    world.perform(effects)
    assert [departure.code for departure in departures] == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert [member.member_id for member in world.group.roster] == ["new"]


# -- conversions


def classic_state(world: World, *, metadata: bytes | None = None) -> SavedGroup:
    """Two members of a classic group in its seventh generation, with two partitions each."""
    members = []
    for place, member_id in enumerate("kl"):
        given = assignment_bytes({"t": [2 * place, 2 * place + 1]})
        protocols = [("cooperative-sticky", subscription_bytes(["t"]) if metadata is None else metadata)]
        members.append(SavedClassicMember(member_id, None, "client", "/host", SESSION, REBALANCE, protocols, given))
    return SavedGroup(7, "consumer", "cooperative-sticky", "k", members)


def converted(world: World) -> ConsumerGroup:
    members = from_classic(classic_state(world), world.topics.topics(()))
    assert members is not None
    group = world.new_coordinator()
    group.begin(world.now, 7, members)
    return group


def test_an_upgraded_group_starts_with_what_its_leader_assigned(world: World) -> None:
    group = converted(world)
    assert group.state_name == "Stable"
    assert heartbeat(world, "k", 7) is ErrorCode.none
    assert world.say("new", 0).member_epoch == 8
    assert world.durable is not None
    assert world.durable.kind is GroupKind.CONSUMER
    for member_id in "kl":
        assert heartbeat(world, member_id, 7) is ErrorCode.rebalance_in_progress
    world.move()
    assert heartbeat(world, "k", 7) is ErrorCode.rebalance_in_progress, "the upgrade is stored"


def test_what_is_not_kafkas_embedded_protocol_is_not_upgraded(world: World) -> None:
    state = classic_state(world)
    topics = world.topics.topics(())
    assert from_classic(classic_state(world, metadata=b"custom"), topics) is None
    other = SavedGroup(7, "connect", "default", "k", state.members)
    assert from_classic(other, topics) is None
    same = SavedGroup(7, "consumer", "range", "k", [state.members[0], *state.members[:1]])
    assert from_classic(same, topics) is None, "a partition with two owners"
    assert from_classic(SavedGroup(3, None, None, None, []), topics) == []


@pytest.mark.parametrize("silently", [False, True])
def test_the_last_new_member_goes_and_a_classic_group_is_left(world: World, silently: bool) -> None:
    """Its members keep what they have until they have joined the classic group's next generation."""
    converted(world)
    world.say("new", 0)
    if silently:
        world.now += SESSION - 1
        for member_id in "kl":
            heartbeat(world, member_id, 7)
        world.pass_time(1)
    else:
        world.perform(world.group.member_heartbeat(world.now, ConsumerHeartbeat("new", LEAVE_EPOCH), world.token()))
    assert world.became is not None
    assert world.became.kind is GroupKind.CLASSIC
    state = decode(world.became.data)
    assert state is not None
    assert state.generation == 8
    assert [m.assignment for m in state.members] == [assignment_bytes({"t": pair}) for pair in ([0, 1], [2, 3])]
    classic = ClassicGroup("g", random.Random(1), initial_rebalance_delay=3.0)
    saves = [effect for effect in classic.restore(world.now, state) if isinstance(effect, Save)]
    assert classic.state is GroupState.PREPARING_REBALANCE
    assert classic.heartbeat(world.now, MemberRef("k", None, 8)) is ErrorCode.rebalance_in_progress
    stored = saves[-1].state
    assert isinstance(stored, SavedGroup)
    assert stored == state, "a successor owes them the same rebalance"


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_the_policy_may_keep_it_a_consumer_group(policy: str) -> None:
    world = World(group_consumer_migration_policy=policy)
    world.topics.put("t", 4)
    join(world, "k")
    world.say("new", 0)
    assert world.say("new", LEAVE_EPOCH).code is ErrorCode.none
    assert world.became is None
    assert heartbeat(world, "k", 1) is ErrorCode.rebalance_in_progress


def test_a_replaced_instance_may_have_been_the_last_new_member(world: World) -> None:
    world.say("new", 0, instance_id="i")
    token = world.token()
    metadata = (MemberProtocol("range", subscription_bytes(["t"])),)
    request = JoinRequest(MemberRef("", "i"), "client", "/host", SESSION, REBALANCE, "consumer", metadata)
    world.perform(world.group.classic_protocol.join(world.now, request, token))
    assert world.became is not None
    world.perform(world.group.close(ErrorCode.rebalance_in_progress))
    answer = world.answers[token]
    assert isinstance(answer, JoinAnswer)
    assert answer.code is ErrorCode.rebalance_in_progress, "it joins the classic group then"


def test_a_join_during_the_conversion_must_join_again(world: World) -> None:
    """Its save takes longer than its session: it must not start with what a group that is gone gave it."""
    generation = join(world, "k").generation
    sync(world, "k", generation)
    wishes = {"rebalance_timeout": 100.0, "topic_names": frozenset({"t"}), "owned": frozenset()}
    token = world.token()
    world.perform(world.group.member_heartbeat(world.now, ConsumerHeartbeat("new", 0, **wishes), token))  # type: ignore[arg-type]
    world.now += SESSION - 1
    heartbeat(world, "k", generation)
    world.pass_time(1)
    assert world.became is not None
    world.perform(world.group.close(ErrorCode.rebalance_in_progress))
    answer = world.answers[token]
    assert isinstance(answer, MemberHeartbeatAnswer)
    assert (answer.code, answer.assigned) == (ErrorCode.unknown_member_id, None)
