"""Members of share groups: epochs, assignments, sessions; through the handlers of two agents, with other groups."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_values import MemberRef, Reply, Save, SyncRequest
from headrace.agent.groups.members.member import MemberHeartbeat, MemberHeartbeatAnswer
from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.in_flight import AcquireLimits
from headrace.agent.groups.share.membership import ShareTopics, assign
from headrace.agent.groups.share.rules import ShareGroupConfigs
from headrace.agent.groups.share.share_partition import SharePartition
from headrace.agent.limits.work_slices import WorkSlices
from headrace.config.group_configs import duration_ms
from headrace.config.settings import Settings
from headrace.metastore.api.agents import SHARE_VERSION, FeatureRange
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.share_states import KeptRange, decode_kept, encode_kept
from headrace.protocol.request import ClientConnection, Request
from headrace.protocol.typed import schema
from headrace.storage.errors import CorruptError, InvalidError
from tests.agent.groups.groups_world import Coordinating, GroupsWorld

LIMITS = AcquireLimits(30.0, 5, 2000)
CONFIGS = ShareGroupConfigs(10.0, 1.0, LIMITS, "latest", False)
TOPICS = ShareTopics({}, {"t": 1, "u": 2}, {1: [10, 11, 12], 2: [20]})


class Machine:
    """One group, with every save stored at once."""

    def __init__(self) -> None:
        self.topics, self.size_max = TOPICS, 3
        self.group = ShareGroup("g", lambda: self.size_max, lambda: CONFIGS, lambda: self.topics)
        self.saved: Any = None

    def beat(self, member: str, epoch: int, *names: str, now: float = 0.0) -> MemberHeartbeatAnswer:
        """A heartbeat of a member that joins with these topics, or continues without naming any."""
        request = MemberHeartbeat(member, epoch, topic_names=frozenset(names) if names else None)
        effects = self.group.member_heartbeat(now, request, "token")
        answers = []
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, Save):
                self.saved = effect.state
                effects += self.group.saved(now, effect.revision, ErrorCode.none)
            elif isinstance(effect, Reply):
                answers.append(effect.answer)
        (answer,) = answers
        assert isinstance(answer, MemberHeartbeatAnswer)
        return answer


def test_every_partition_is_given_and_several_members_share_one() -> None:
    keys = {1: [10, 11, 12], 2: [20]}
    two = assign({"a": frozenset({1}), "b": frozenset({1})}, keys)
    assert two["a"] | two["b"] == {10, 11, 12}
    assert not two["a"] & two["b"]
    many = assign({name: frozenset({2}) for name in "abc"}, keys)
    assert set(many.values()) == {frozenset({20})}
    mixed = assign({"a": frozenset({1, 2}), "b": frozenset({1}), "c": frozenset()}, keys)
    assert mixed["a"] | mixed["b"] == {10, 11, 12, 20}
    assert mixed["c"] == frozenset()
    assert assign({"a": frozenset({9})}, keys) == {"a": frozenset()}


def test_members_join_continue_are_fenced_and_leave() -> None:
    machine = Machine()
    first = machine.beat("a", 0, "t")
    assert (first.code, first.member_epoch, first.assigned) == (ErrorCode.none, 1, {10, 11, 12})
    second = machine.beat("b", 0, "t")
    assert second.member_epoch == 2
    told = machine.beat("a", 1)
    assert (told.member_epoch, told.assigned) == (2, frozenset({10, 11, 12}) - (second.assigned or frozenset()))
    assert machine.beat("a", 2).assigned is None, "nothing changed"
    assert machine.beat("a", 1).member_epoch == 2, "it missed the last answer"
    assert machine.beat("a", 7).code is ErrorCode.fenced_member_epoch
    assert machine.beat("x", 3).code is ErrorCode.unknown_member_id
    assert machine.beat("c", 0, "t").code is ErrorCode.none
    assert machine.beat("d", 0, "t").code is ErrorCode.group_max_size_reached
    assert machine.beat("b", -1).member_epoch == -1
    assert machine.beat("b", -1).code is ErrorCode.unknown_member_id
    assert machine.group.state_name == "Stable"
    assert machine.group.subscribed_topics() == {"t"}


def test_a_change_of_topics_gives_a_new_assignment_with_the_next_heartbeat() -> None:
    machine = Machine()
    machine.beat("a", 0, "t", "new")
    machine.topics = ShareTopics({}, {"t": 1, "new": 3}, {1: [10], 3: [30]})
    answer = machine.beat("a", 1)
    assert (answer.member_epoch, answer.assigned) == (2, {10, 30})


def test_late_members_are_given_up_and_what_they_had_is_free() -> None:
    machine, freed = Machine(), []
    machine.beat("a", 0, "t")
    machine.group.on_freed = lambda: freed.append(True)
    partition = machine.group.partitions[10] = SharePartition(0)
    partition.acquire(0.0, "a", 5, 5, LIMITS)
    assert machine.group.next_deadline() == 10.0
    assert not machine.group.is_idle()
    machine.group.tick(10.0)
    assert (machine.group.state_name, machine.group.is_idle(), freed) == ("Empty", True, [True])
    assert partition.acquire(11.0, "b", 5, 5, LIMITS)[0].tries == 2


def test_the_next_coordinator_continues_where_the_last_one_was() -> None:
    machine = Machine()
    machine.beat("a", 0, "t")
    machine.beat("b", 0, "u")
    heir = Machine()
    heir.group.restore(100.0, machine.saved.record())
    heir.group.epochs_from(1 << 20)
    assert list(heir.group.members) == list(machine.group.members)
    assert heir.beat("b", 2, now=101.0).code is ErrorCode.none
    assert heir.beat("c", 0, "t", now=101.0).member_epoch == 1 << 20
    assert machine.saved.record().kind is GroupKind.SHARE


def test_other_protocols_are_refused() -> None:
    group = Machine().group
    ref = MemberRef("a", None, 1)
    assert group.check_commit(0.0, ref, 9) is group.check_fetch(ref) is ErrorCode.group_id_not_found
    assert group.classic_protocol is None


def test_what_is_kept_survives_its_encoding_and_ends_at_the_high_watermark() -> None:
    kept = [KeptRange(5, 7, True, 0), KeptRange(9, 2**33, False, 3)]
    assert decode_kept(encode_kept(kept), 2**40)[0] == kept[0]
    assert SharePartition(5, decode_kept(encode_kept(kept), 2**40)).end == 2**33 + 1
    assert decode_kept(encode_kept(kept), 12) == [KeptRange(5, 7, True, 0), KeptRange(9, 11, False, 3)]
    assert decode_kept(encode_kept(kept), 5) == []
    with pytest.raises(CorruptError):
        decode_kept(encode_kept(kept)[:-1], 12)
    with pytest.raises(CorruptError):
        decode_kept(b"", 12)
    with pytest.raises(InvalidError):
        decode_kept(b"\x02" + encode_kept(kept)[1:], 12)


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        ("by_duration:PT1H", 3_600_000),
        ("by_duration:P1DT2H3M4.5S", 93_784_500),
        ("by_duration:P", None),
        ("by_duration:PT", None),
        ("by_duration:1h", None),
        ("latest", None),
    ],
)
def test_durations(reset: str, expected: int | None) -> None:
    assert duration_ms(reset) == expected


# -- through the handlers


async def _beat(agent: Coordinating, epoch: int, group: str = "g", names: tuple[str, ...] | None = ("t",)) -> Any:
    make = schema(76, 1).request_type
    entity = make(group_id=group, member_id="m", member_epoch=epoch, rack_id=None, subscribed_topic_names=names)
    request = Request(ClientConnection(1, "h:1"), 76, 1, 1, "client", memoryview(b""), 0.0, entity)
    response: Any = await agent.handlers[76](request)
    assert response.buffers
    return response.entity


async def _classic_answers(agent: Coordinating, ref: MemberRef) -> list[ErrorCode]:
    """The codes of the other requests of the classic protocol for group "g"."""
    coordinator = agent.requests.coordinator
    departures = await coordinator.leave("g", [ref], "/h")
    assert not isinstance(departures, ErrorCode)
    synced = await coordinator.sync("g", SyncRequest(ref, {}))
    return [synced.code, await coordinator.heartbeat("g", ref), departures[0].code]


def _offer(world: GroupsWorld, level: int = 1) -> None:
    for agent in world.agents:
        follower = agent.cluster.follower
        features = {**follower.image.features, SHARE_VERSION: FeatureRange(0, level)}
        follower.image = replace(follower.image, features=MappingProxyType(features))


async def test_a_share_group_and_groups_of_other_types_do_not_share_an_id(world: GroupsWorld) -> None:
    clock = world.clock
    _offer(world)
    joined = await clock.run(_beat(world.home, 0))
    assert (joined.error_code, joined.member_epoch) == (0, 1)
    assert (await clock.run(world.home.join("g"))).error_code == ErrorCode.inconsistent_group_protocol
    assert await clock.run(_classic_answers(world.home, MemberRef("m", None, 1))) == [ErrorCode.unknown_member_id] * 3
    codes = await clock.run(world.home.commit("g", {"t": {0: 1}}))
    assert set(codes["t"].values()) <= {int(ErrorCode.group_id_not_found), int(ErrorCode.unknown_topic_or_partition)}
    (listed,) = await clock.run(world.home.requests.administration.list(WorkSlices()))  # type: ignore[arg-type]
    assert (listed.kind, listed.state, listed.protocol_type) == (GroupKind.SHARE, "Stable", "share")

    home = world.coordinator("classic")
    assert (await clock.run(home.join("classic", version=3))).error_code == 0
    assert (await clock.run(_beat(home, 0, "classic"))).error_code == ErrorCode.group_id_not_found


async def test_heartbeats_that_are_refused(world: GroupsWorld) -> None:
    clock = world.clock
    _offer(world, 0)
    assert (await clock.run(_beat(world.home, 0))).error_code == ErrorCode.unsupported_version
    _offer(world)
    assert (await clock.run(_beat(world.home, -1))).error_code == ErrorCode.group_id_not_found
    assert (await clock.run(_beat(world.home, 0, names=None))).error_code == ErrorCode.invalid_request
    assert (await clock.run(_beat(world.home, -2))).error_code == ErrorCode.invalid_request
    assert (await clock.run(_beat(world.home, 0, " "))).error_code == ErrorCode.invalid_request
    assert (await clock.run(_beat(world.other, 0))).error_code == ErrorCode.not_coordinator


async def test_a_member_of_a_group_that_postgres_lost_joins_again(world: GroupsWorld) -> None:
    """A standby without the group's row was promoted; an error that stops a client would stop all members."""
    clock = world.clock
    _offer(world)
    joined = await clock.run(_beat(world.home, 0))
    held = await clock.run(world.home.requests.groups.find("g"))
    assert not isinstance(held, ErrorCode)
    world.home.requests.groups.drop(held)
    world.groups.groups["g"].record = None
    lost = await clock.run(_beat(world.home, joined.member_epoch, names=None))
    assert lost.error_code == ErrorCode.unknown_member_id
    assert (await clock.run(_beat(world.home, 0))).error_code == ErrorCode.none


def test_settings_that_do_not_fit_each_other_are_refused() -> None:
    assert Settings().group_share_max_size == 200
