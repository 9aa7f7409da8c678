"""ConsumerGroupHeartbeat and ConsumerGroupDescribe through the handlers: bytes, faults, agents that change."""

from __future__ import annotations

import asyncio
import base64
import datetime
import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.topics import GroupTopics
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import schema
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import captured_requests
from tests.agent.groups.groups_world import Coordinating, Front, GroupsWorld
from tests.agent.topics.membership_world import ask, exchange
from tests.protocol.embedded_bytes import subscription_bytes
from tests.protocol.kio_entities import kio_read

WORLD_TOPICS = {"t": 4}
HEARTBEAT, DESCRIBE, DESCRIBE_CLASSIC, LIST = 68, 69, 15, 16
REBALANCE = datetime.timedelta(seconds=60)


async def heartbeat(agent: Coordinating, member_id: str, epoch: int, *, version: int = 1, **fields: Any) -> Any:
    """A full request when it joins, else only what is given; `owned` as {topic id: partitions}."""
    owned = fields.pop("owned", {} if epoch == 0 else None)
    joining = {"rebalance_timeout": REBALANCE, "subscribed_topic_names": ("t",)} if epoch == 0 else {}
    values = {
        "group_id": "g",
        "member_id": member_id,
        "member_epoch": epoch,
        "topic_partitions": None
        if owned is None
        else [("TopicPartitions", {"topic_id": t, "partitions": tuple(p)}) for t, p in owned.items()],
        **joining,
        **fields,
    }
    return await ask(Front(agent), HEARTBEAT, version, received_at=1000.0, **values)  # type: ignore[arg-type]


def assigned(answer: Any) -> dict[uuid.UUID, tuple[int, ...]] | None:
    assert answer.error_code is ErrorCode.none, answer.error_message
    if answer.assignment is None:
        return None
    return {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}


def topic_id(world: GroupsWorld, name: str = "t") -> uuid.UUID:
    return world.home.cluster.image.topics_by_name[name].topic_id


async def describe(agent: Coordinating, group_id: str = "g", *, version: int = 1) -> Any:
    fields = {"group_ids": (group_id, group_id), "include_authorized_operations": True}
    answer = await ask(Front(agent), DESCRIBE, version, received_at=1000.0, **fields)  # type: ignore[arg-type]
    (group,) = answer.groups
    return group


# -- bytes


@pytest.mark.parametrize("version", [0, 1])
async def test_the_bytes_of_an_answer(world: GroupsWorld, version: int) -> None:
    """Written down manually from Kafka's ConsumerGroupHeartbeatResponse.json."""
    fields = {
        "group_id": "g",
        "member_id": "m-1",
        "member_epoch": 0,
        "rebalance_timeout": REBALANCE,
        "subscribed_topic_names": ("t",),
        "topic_partitions": (),
    }
    body = await exchange(Front(world.home), HEARTBEAT, version, received_at=1000.0, **fields)  # type: ignore[arg-type]
    expected = (
        "00000000" "0000" "00"  # throttle time, no error, no message
        "04" + b"m-1".hex() + "00000001" "00001388"  # member id, epoch 1, heartbeat every 5,000 ms
        "01" "02" + topic_id(world).hex + "05" "00000000" "00000001" "00000002" "00000003" "00"  # four partitions
        "00" "00"  # no tags in the assignment, none in the answer
    )  # fmt: skip
    assert body.hex() == expected
    told = await exchange(
        Front(world.home), HEARTBEAT, version, received_at=1000.0, group_id="g", member_id="m-1", member_epoch=1,
        topic_partitions=None,
    )  # type: ignore[arg-type]  # fmt: skip
    assert told.hex() == "0000000000000004" + b"m-1".hex() + "0000000100001388ff00"


@pytest.mark.parametrize(("label", "request_"), captured_requests(HEARTBEAT), ids=lambda value: str(value)[:20])
async def test_real_clients_join(world: GroupsWorld, label: str, request_: Request) -> None:
    answer = await world.home.handlers[HEARTBEAT](request_)
    assert isinstance(answer, Response)
    assert answer.buffers is not None
    found = kio_read(schema(HEARTBEAT, request_.api_version).response_type, b"".join(answer.buffers)[5:])
    assert (found.error_code, found.member_epoch) == (ErrorCode.none, 1), label
    assert assigned(found) == {topic_id(world): (0, 1, 2, 3)}
    assert found.member_id


async def test_version_0_leaves_the_member_id_to_the_coordinator(world: GroupsWorld) -> None:
    answer = await heartbeat(world.home, "", 0, version=0)
    assert len(base64.urlsafe_b64decode(answer.member_id + "==")) == 16
    assert (await heartbeat(world.home, answer.member_id, 1, version=0)).error_code is ErrorCode.none


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_request),
        ({"member_id": ""}, ErrorCode.invalid_request),
        ({"instance_id": ""}, ErrorCode.invalid_request),
        ({"rack_id": ""}, ErrorCode.invalid_request),
        ({"group_id": "a\0b"}, ErrorCode.invalid_request),
        ({"rebalance_timeout": datetime.timedelta(milliseconds=-1)}, ErrorCode.invalid_request),
        ({"owned": None}, ErrorCode.invalid_request),
        ({"owned": {uuid.UUID(int=7): [0]}}, ErrorCode.invalid_request),
        ({"subscribed_topic_names": None}, ErrorCode.invalid_request),
        ({"member_epoch": -2}, ErrorCode.invalid_request),
        ({"member_epoch": -3}, ErrorCode.invalid_request),
        ({"server_assignor": "sticky"}, ErrorCode.unsupported_assignor),
        ({"subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression),
        ({"subscribed_topic_regex": "(a)\\1"}, ErrorCode.invalid_regular_expression),
        ({"subscribed_topic_regex": "((a{50}){50}){50}"}, ErrorCode.invalid_regular_expression),
        ({"member_epoch": -1, "owned": None}, ErrorCode.group_id_not_found),
    ],
    ids=str,
)
async def test_what_is_wrong_in_itself_is_refused(world: GroupsWorld, fields: dict[str, Any], code: ErrorCode) -> None:
    values: dict[str, Any] = {"owned": {}, **fields}
    answer = await heartbeat(world.home, values.pop("member_id", "m"), 0, **values)
    assert answer.error_code is code
    assert answer.error_message


async def test_another_agents_group_is_refused(world: GroupsWorld) -> None:
    assert (await heartbeat(world.other, "m", 0)).error_code is ErrorCode.not_coordinator
    assert (await describe(world.other)).error_code is ErrorCode.not_coordinator


# -- topics


async def test_a_pattern_is_res_syntax_on_whole_names(world: GroupsWorld) -> None:
    for name in ("orders-1", "orders-x", "xorders-1", "orders-22"):
        world.cluster_api.add_topic(name, 1)
    pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": r"orders-\d{1,2}|t"}
    answer = await heartbeat(world.home, "m", 0, **pattern)
    names = {world.home.cluster.image.topics_by_id[each].name for each in assigned(answer) or ()}
    assert names == {"orders-1", "orders-22", "t"}


async def test_no_pattern_holds_the_agent(world: GroupsWorld) -> None:
    """It would take a backtracking matcher longer than the universe has."""
    world.cluster_api.add_topic("a" * 200 + "b", 1)
    pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "(a|a|aa)+$"}
    assert assigned(await heartbeat(world.home, "m", 0, **pattern)) == {}


async def test_no_number_of_patterns_fills_the_agents_memory(
    world: GroupsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client need not be a member to ask for one."""
    monkeypatch.setattr("headrace.agent.groups.consumer.topics.PATTERNS_MAX", 3)
    topics = GroupTopics(world.home.cluster, authorizer=None)
    await topics.prepare(["t"])
    before = topics.topics(["t"])
    for number in range(10):
        await topics.prepare([f"{number}|t"])
        assert len(topics.topics().matches) <= 3
    many = [f"t{{{number}}}" for number in range(1, 6)]
    assert [len(topics.topics(many).of((), pattern)) for pattern in many] == [1, 0, 0, 0, 0]
    assert before.of((), "t") == topics.topics(["t"]).of((), "t")


async def test_a_coordinator_that_lags_catches_up_before_it_judges(world: GroupsWorld) -> None:
    """A topic that is new to it is assigned at once, and one that a member owns does not count as free."""
    later = world.cluster_api.add_topic("later", 1)
    answer = await heartbeat(world.home, "m", 0, subscribed_topic_names=("later",))
    assert assigned(answer) == {later: (0,)}
    even_later = world.cluster_api.add_topic("even-later", 1)
    await heartbeat(world.home, "m", 1, owned={even_later: [0]})
    assert even_later in world.home.cluster.image.topics_by_id


async def test_a_group_may_follow_the_metadata_log(world: GroupsWorld) -> None:
    answer = await heartbeat(world.home, "m", 0, subscribed_topic_names=("__cluster_metadata",))
    assert assigned(answer) == {uuid.UUID(int=1): (0,)}
    everything = await heartbeat(world.home, "n", 0, subscribed_topic_names=None, subscribed_topic_regex=".*")
    assert assigned(everything) == {topic_id(world): (0, 1, 2, 3)}, "a pattern does not mean it"
    group = await describe(world.home)
    assert group.members[0].assignment.topic_partitions[0].topic_name == "__cluster_metadata"
    assert (await heartbeat(world.home, "m", 1, owned={uuid.UUID(int=1): [0]})).error_code is ErrorCode.none


async def test_without_the_log_nothing_is_judged(world: GroupsWorld) -> None:
    world.cluster_api.fail_before["metadata_head"] = [UnavailableError("down")] * 3
    world.cluster_api.fail_before["read_metadata"] = [UnavailableError("down")] * 3
    answer = await heartbeat(world.home, "m", 0, subscribed_topic_names=("nobody-knows",))
    assert answer.error_code is ErrorCode.coordinator_load_in_progress


# -- agents and the store


async def test_the_next_coordinator_goes_on_without_a_rebalance(world: GroupsWorld) -> None:
    home, heir = world.home, world.other
    await heartbeat(home, "a", 0)
    await heartbeat(home, "b", 0)
    kept = assigned(await heartbeat(home, "a", 1))
    await heartbeat(home, "a", 1, owned=kept)
    taken = assigned(await heartbeat(home, "b", 2))
    before = await describe(home)
    await world.clock.run(home.cluster.stop())
    await heir.cluster.catch_up()
    for member_id in "ab":
        answer = await heartbeat(heir, member_id, 2)
        assert (assigned(answer), answer.member_epoch) == (None, 2)
    assert await describe(heir) == before
    told = await heartbeat(heir, "b", 2, owned=taken, rebalance_timeout=REBALANCE, subscribed_topic_names=("t",))
    assert assigned(told) == taken


async def test_a_coordinator_that_was_cut_off_does_not_answer(home: Coordinating, world: GroupsWorld) -> None:
    """Its lease ran out; the heir, which may claim then, continues, and what the old one still saves is refused."""
    await heartbeat(home, "a", 0)
    world.cluster_api.fail_before["heartbeat"] = [UnavailableError("down")] * 100
    await world.clock.advance(25)
    assert (await heartbeat(home, "a", 1)).error_code is ErrorCode.coordinator_not_available
    world.cluster_api.fail_before["heartbeat"].clear()
    await world.clock.advance(4)
    assert (await heartbeat(home, "a", 1)).error_code is ErrorCode.none


@pytest.mark.parametrize("happened", [False, True])
async def test_a_save_that_failed_is_not_built_upon(home: Coordinating, world: GroupsWorld, happened: bool) -> None:
    await heartbeat(home, "a", 0)
    faults = world.groups.fail_after if happened else world.groups.fail_before
    faults["save_group"] = [OutcomeUnknownError("lost") if happened else UnavailableError("down")]
    assert (await heartbeat(home, "b", 0)).error_code is ErrorCode.coordinator_not_available
    assert {member.member_id for member in (await describe(home)).members} == ({"a", "b"} if happened else {"a"})
    answer = await heartbeat(home, "b", 0)
    assert (answer.error_code, answer.member_epoch) == (ErrorCode.none, 2)


async def test_a_successors_claim_fences_the_answer(home: Coordinating, world: GroupsWorld) -> None:
    await heartbeat(home, "a", 0)
    world.groups.take_over("g")
    assert (await heartbeat(home, "b", 0)).error_code is ErrorCode.not_coordinator
    assert {member.member_id for member in (await describe(home)).members} == {"a"}


async def test_members_that_fall_silent_are_given_up_by_the_clock(home: Coordinating, world: GroupsWorld) -> None:
    await heartbeat(home, "a", 0)
    await world.clock.advance(44.9)
    assert (await describe(home)).group_state == "Stable"
    await world.clock.advance(0.2)
    assert (await describe(home)).group_state == "Empty"
    assert (await heartbeat(home, "a", 1)).error_code is ErrorCode.unknown_member_id


async def test_a_group_may_have_its_own_timeouts(world: GroupsWorld) -> None:
    for name, value in (("consumer.heartbeat.interval.ms", "9000"), ("consumer.session.timeout.ms", "50000")):
        world.cluster_api.append(ConfigRecord(resource_type=32, resource_name="g", name=name, value=value))
    await world.catch_up()
    answer = await heartbeat(world.home, "a", 0)
    assert answer.heartbeat_interval == datetime.timedelta(seconds=9)
    await world.clock.advance(49)
    assert (await describe(world.home)).group_state == "Stable"
    await world.clock.advance(2)
    assert (await describe(world.home)).group_state == "Empty"


async def test_offsets_are_committed_under_the_member_epoch(home: Coordinating) -> None:
    await heartbeat(home, "a", 0)
    assert await home.commit("g", {"t": {0: 5}}, version=9, member_id="a", generation=1) == {"t": {0: 0}}
    stale = await home.commit("g", {"t": {0: 6}}, version=9, member_id="a", generation=0)
    assert stale == {"t": {0: ErrorCode.stale_member_epoch}}
    assert (await home.fetch("g", {"t": [0]}, version=9))[1]["t"][0][0] == 5


# -- tools


async def test_a_group_is_described(world: GroupsWorld) -> None:
    await heartbeat(world.home, "a", 0, instance_id="i", rack_id="r", subscribed_topic_regex="x.*")
    await heartbeat(world.home, "b", 0, server_assignor="range")
    group = await describe(world.home)
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Reconciling", 2, 2)
    assert group.assignor_name == "range"
    assert group.authorized_operations == 0b110101001000
    first, second = group.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("a", "i", "r", 1)
    assert (first.client_id, first.client_host, first.member_type) == ("test", "/127.0.0.1", 1)
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (("t",), "x.*")
    assert second.subscribed_topic_regex == "", "as Kafka says it"
    (has,), (shall_have,) = first.assignment.topic_partitions, first.target_assignment.topic_partitions
    assert (has.topic_name, has.partitions, has.topic_id) == ("t", (0, 1, 2, 3), topic_id(world))
    assert len(shall_have.partitions) == 2
    assert (second.member_epoch, second.assignment.topic_partitions) == (2, ())
    older = await describe(world.home, version=0)
    assert [member.member_id for member in older.members] == ["a", "b"]


async def test_tools_tell_the_kinds_apart(home: Coordinating) -> None:
    await heartbeat(home, "a", 0)
    front: Any = Front(home)
    listed = await ask(front, LIST, 5, received_at=1000.0, states_filter=(), types_filter=("consumer",))
    assert [(g.group_id, g.group_type, g.group_state, g.protocol_type) for g in listed.groups] == [
        ("g", "consumer", "Stable", "consumer")
    ]
    old = {"groups": ("g",), "include_authorized_operations": False}
    (described,) = (await ask(front, DESCRIBE_CLASSIC, 6, received_at=1000.0, **old)).groups
    assert (described.error_code, described.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert (await describe(home, "")).error_code is ErrorCode.invalid_group_id
    answers = [await describe(home, f"absent-{number}") for number in range(9)]
    absent = [answer for answer in answers if answer.error_code is ErrorCode.group_id_not_found]
    assert absent, "the others have another coordinator"
    assert all(answer.error_message == f"Group {answer.group_id} not found." for answer in absent)
    await heartbeat(home, "a", -1)
    assert (await describe(home)).group_state == "Empty"
    await home.join("g", "k", metadata=subscription_bytes(["t"]), version=3)
    classic = await describe(home)
    assert classic.error_code is ErrorCode.group_id_not_found, "empty, it became a classic one"
    assert classic.error_message == "Group g is not a consumer group."


@pytest.mark.requirement("X7")
async def test_one_turn_of_the_event_loop_changes_one_group(
    world: GroupsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that joins costs time for every member of its group: many at once would stall the loop."""
    turn, changes = 0, list[int]()
    change = ConsumerGroup.member_heartbeat

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def counted(group: ConsumerGroup, now: float, request: Any, token: Any) -> Any:
        changes.append(turn)
        return change(group, now, request, token)

    monkeypatch.setattr(ConsumerGroup, "member_heartbeat", counted)
    await heartbeat(world.home, "m0", 0)
    before, counting = len(changes), asyncio.create_task(count_turns())
    answers = await asyncio.gather(*(heartbeat(world.home, f"m{number}", 0) for number in range(1, 20)))
    counting.cancel()
    assert {answer.error_code for answer in answers} == {ErrorCode.none}
    joins = changes[before:]
    assert len(joins) >= 19
    assert len(set(joins)) == len(joins), "each in another turn"
