"""Turns at the owner of a share group: who gets what, what frees it, and what a new life of the metastore ends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.fetch.waiters import Waiter
from headrace.agent.groups.share.answered import AnsweredShares
from headrace.agent.groups.share.owner import ShareOwner
from headrace.agent.groups.share.share_partition import SharePartition
from headrace.agent.peers.channel import SHARE_TURN_KEY
from headrace.agent.peers.share_turns import PartitionAsk, Returned, ShareTurn, TurnAnswer, decode_answer, encode
from headrace.metastore.api.groups import GroupKind, StoredSharePartition
from headrace.metastore.api.read import ReadableEnds
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import partition_key
from headrace.metastore.life.recorded_shares import read_recorded
from headrace.metastore.log.kip631_records import PartitionRecord
from headrace.metastore.log.own_records import AliasPartitionRecord, PartitionCountRecord
from headrace.metastore.share_states import decode_kept, encode_kept
from headrace.protocol.request import ClientConnection, CloseConnection, Request
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from tests.agent.groups.groups_world import GroupsWorld
from tests.agent.groups.share.test_share_groups import _beat, _offer
from tests.agent.groups.test_metrics import sample
from tests.manual_clock import ManualClock


class FakeLogs:
    """Every log has `end` records."""

    def __init__(self) -> None:
        self.end, self.start, self.is_draining = 10, 0, False
        self.waiters: dict[Waiter, None] = {}

    async def ends(self, offsets: Mapping[int, int], *, committed: bool) -> dict[int, ReadableEnds | ErrorCode]:
        return {key: ReadableEnds(self.start, self.end) for key in offsets}

    async def beginnings(self, keys: Collection[int], reset: str) -> dict[int, int]:
        return dict.fromkeys(keys, self.start)

    async def high_watermarks(self, keys: Collection[int]) -> dict[int, int]:
        return dict.fromkeys(keys, self.end)

    @contextmanager
    def watch(self, keys: Collection[int]) -> Iterator[Waiter]:
        waiter = Waiter()
        self.waiters[waiter] = None
        yield waiter
        del self.waiters[waiter]


class Owning:
    """The agent that coordinates the group, and clients that take turns there."""

    def __init__(self, world: GroupsWorld, key: int) -> None:
        self.world, self.key, self.logs = world, key, FakeLogs()
        self.owner: ShareOwner = world.home.requests.share_owner
        self.owner.logs = self.logs
        self.client = ClientConnection(1, "a:1")

    async def turn(
        self,
        member: str,
        *acks: tuple[int, int, int],
        wants: bool = True,
        client: ClientConnection | None = None,
        **more: Any,
    ) -> tuple[int, int, list[tuple[int, int, int]]]:
        """`acks`: (first, last, type). (the partition's code, that of the acknowledgements, what was acquired)."""
        ask = PartitionAsk(self.key, [(first, last, bytes((kind,))) for first, last, kind in acks], wants)
        turn = ShareTurn("g", member, [ask], **{"max_records": 4, **more})
        answer: TurnAnswer = await self.world.clock.run(self.owner.turn(turn, client or self.client))
        if answer.error:
            return answer.error, answer.error, []
        (part,) = answer.partitions
        return part.error, part.ack_error, part.acquired


@pytest.fixture
async def owning(fake_clock: ManualClock) -> AsyncIterator[Owning]:
    world = GroupsWorld(fake_clock)
    await world.start()
    head = world.home.cluster.image.offset
    assert await world.cluster_api.create_topics(head, [NewTopic("t", uuid.UUID(int=9), 1, {})])
    await world.catch_up()
    _offer(world)
    await fake_clock.run(_beat(world.home, 0))
    yield Owning(world, partition_key(world.home.cluster.image.topics_by_name["t"].topic_number, 0))
    await world.stop()


async def test_records_are_acquired_acknowledged_and_stored(owning: Owning) -> None:
    assert await owning.turn("m") == (0, 0, [(0, 3, 1)])
    assert await owning.turn("n") == (0, 0, [(4, 7, 1)])
    assert await owning.turn("m", (4, 4, 1), wants=False) == (0, ErrorCode.invalid_record_state, [])
    assert await owning.turn("m", (0, 1, 1), (2, 3, 2)) == (0, 0, [(2, 3, 2), (8, 9, 1)])
    stored = owning.world.groups.shares["g"][owning.key]
    assert stored.start_offset == 2


async def test_what_a_client_had_is_free_when_it_goes_unless_the_member_came_another_way(owning: Owning) -> None:
    first, second = ClientConnection(2, "a:2"), ClientConnection(3, "a:3")
    assert (await owning.turn("m", client=first))[2] == [(0, 3, 1)]
    await owning.turn("m", client=second, max_records=1)
    for client in (first, second):
        assert client.when_closed is not None
    first.closed = True
    first.when_closed()  # type: ignore[misc]
    assert (await owning.turn("n", max_records=4))[2] == [(5, 8, 1)], "the member is there by its second connection"
    second.closed = True
    second.when_closed()  # type: ignore[misc]
    assert (await owning.turn("n", max_records=4))[2] == [(0, 3, 2)]
    assert (await owning.turn("m", client=second))[2] == [], "nothing is acquired for a client that is gone"


async def test_the_end_of_a_session_and_what_was_not_sent_free_records(owning: Owning) -> None:
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
    assert await owning.turn("m", (0, 0, 1), closes=True) == (0, 0, [])
    assert (await owning.turn("n"))[2] == [(1, 3, 2), (4, 4, 1)]
    back = ShareTurn("g", "n", returned=[Returned(owning.key, 3, 4), Returned(owning.key, 1, 1, True)])
    await owning.world.clock.run(owning.owner.turn(back, owning.client))
    assert (await owning.turn("o", max_records=3))[2] == [(3, 3, 2), (4, 5, 1)], "they were no attempts"


async def test_a_turn_waits_for_records_and_for_what_others_release(owning: Owning) -> None:
    clock = owning.world.clock
    assert (await owning.turn("n", max_records=20))[2] == [(0, 9, 1)]
    turn = ShareTurn("g", "m", [PartitionAsk(owning.key, wants=True)], 4, 60_000)
    waiting = asyncio.create_task(owning.owner.turn(turn, owning.client))
    await clock.settle()
    assert not waiting.done()
    assert (await owning.turn("n", (5, 5, 2), wants=False))[1] == 0
    await clock.settle()
    assert (await waiting).partitions[0].acquired == [(5, 5, 2)]

    waiting = asyncio.create_task(owning.owner.turn(turn, owning.client))
    await clock.settle()
    owning.logs.end = 12
    for waiter in owning.logs.waiters:
        waiter.hear(1)
    await clock.settle()
    assert (await waiting).partitions[0].acquired == [(10, 11, 1)]

    waiting = asyncio.create_task(owning.owner.turn(turn, owning.client))
    await clock.advance(31.0)
    assert (await waiting).partitions[0].acquired == [(0, 3, 2)], "their lock expired"


async def test_a_life_of_the_metastore_ends_what_is_in_memory_and_is_cut_at_the_high_watermark(owning: Owning) -> None:
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
    assert (await owning.turn("m", (0, 3, 1), wants=False))[1] == 0
    assert owning.world.groups.shares["g"][owning.key].start_offset == 4
    owning.owner.life_begins()
    owning.world.groups.high_watermarks[owning.key] = owning.logs.end = 2
    owning.logs.end = 3
    assert (await owning.turn("m"))[2] == [(2, 2, 1)], "a record that came at an offset of the old life"


async def test_only_agents_forward_turns(owning: Owning) -> None:
    body = memoryview(encode(ShareTurn("g", "m", [PartitionAsk(owning.key, wants=True)], 2)))
    direct = Request(owning.client, SHARE_TURN_KEY, 0, 1, None, body, 0.0)
    with pytest.raises(CloseConnection):
        await owning.owner.handle(direct)
    forwarded = ClientConnection(5, "a:5", is_forwarded=True)
    response = await owning.world.clock.run(
        owning.owner.handle(Request(forwarded, SHARE_TURN_KEY, 0, 1, None, body, 0.0))
    )
    assert response.buffers is not None
    assert decode_answer(bytes(response.buffers[0])).partitions[0].acquired == [(0, 1, 1)]


async def test_another_agent_does_not_take_turns(owning: Owning) -> None:
    other = owning.world.other.requests.share_owner
    other.logs = owning.logs
    turn = ShareTurn("g", "m", [PartitionAsk(owning.key, wants=True)], 2)
    answer = await owning.world.clock.run(other.turn(turn, owning.client))
    assert answer.error == ErrorCode.not_leader_or_follower


async def test_what_members_do_is_counted(owning: Owning) -> None:
    home = owning.world.home
    await owning.turn("m")
    await owning.turn("m", (0, 0, 1), (1, 1, 3), (2, 2, 2), (3, 3, 4), wants=False)
    counted = {
        kind: sample(home, "headrace_share_acknowledged_records_total", type=kind)
        for kind in ("accept", "reject", "release", "renew", "gap")
    }
    assert counted == {"accept": 1, "reject": 1, "release": 1, "renew": 1, "gap": 0}
    assert sample(home, "headrace_share_acquired_records_total") == 4
    assert sample(home, "headrace_share_fetch_partitions_total", result="acquired") == 1
    assert sample(home, "headrace_share_in_flight_records") == 2, "from the third record to the fourth"
    assert sample(home, "headrace_share_group_rebalances_total") == 1
    assert sample(home, "headrace_share_acquire_seconds_count") == 1
    assert sample(home, "headrace_share_load_seconds_count") == 1
    assert (sample(home, "headrace_share_store_seconds_count") or 0) >= 1
    await owning.turn("m", client=ClientConnection(9, "a:9"), max_records=1)
    await owning.world.clock.advance(31.0)
    await owning.turn("n", max_records=1)
    assert sample(home, "headrace_share_lock_timeouts_total") == 2


@pytest.mark.requirement("X4")
async def test_what_members_were_answered_is_recorded_in_the_bucket(owning: Owning) -> None:
    """What is stored, when a life begins and when the agent stops; not what was deleted."""
    store = MemoryStore(owning.world.clock)
    owning.owner.answered = AnsweredShares(store, lambda: 7, owning.world.clock)
    await owning.turn("m")
    await owning.turn("m", (0, 1, 1), (3, 3, 1), wants=False)
    owning.owner.life_begins()
    await owning.owner.answered.close()
    (recorded,) = await read_recorded(store, 1)
    assert (recorded.life, recorded.writer) == (0, "agent-7")
    ((group_id, key, _, _, begun, start, kept),) = recorded.states
    assert (group_id, key, begun, start) == ("g", owning.key, 0, 2)
    assert [each[:3] for each in decode_kept(kept, 10)] == [(2, 2, False), (3, 3, True)]
    await owning.turn("m")
    owned = next(iter(owning.owner._owned.values()))
    owning.owner.forget(owned, [owning.key])
    owning.owner.drop(owned)
    assert list(owning.owner.answered._released) == [], "what was deleted is not lost"


async def test_altered_offsets_make_a_group_that_is_not_there_yet(owning: Owning) -> None:
    """As in Kafka; not in the place of a group of another kind."""
    world, offsets = owning.world, owning.world.home.requests.share_offsets
    refusal = world.home.requests.groups.refusal
    new, classic, unsaved = [f"g{n}" for n in range(40) if refusal(f"g{n}") is ErrorCode.none][:3]
    assert await world.clock.run(offsets.alter(new, {})) is ErrorCode.group_id_not_found
    assert await world.clock.run(offsets.alter(new, {owning.key: 3})) == {owning.key: ErrorCode.none}
    assert await world.clock.run(offsets.describe(new)) == {owning.key: (3, 7)}
    record = world.groups.groups[new].record
    assert record is not None
    assert (record.kind, record.state) == (GroupKind.SHARE, "Empty")
    await world.home.join(classic, version=3)
    assert await world.clock.run(offsets.alter(classic, {owning.key: 3})) is ErrorCode.group_id_not_found
    world.groups.fail_before["save_group"].append(UnavailableError("no answer"))
    assert await world.clock.run(offsets.alter(unsaved, {owning.key: 3})) is ErrorCode.coordinator_not_available
    assert world.groups.shares[unsaved] == {}


async def test_aliases_are_not_assigned_and_a_child_that_returns_begins_where_its_doubling_says(owning: Owning) -> None:
    """A group that began while the child was an alias does not get its old records."""
    world, topic_id = owning.world, uuid.UUID(int=10)
    head = world.home.cluster.image.offset
    assert await world.cluster_api.create_topics(head, [NewTopic("u", topic_id, 2, {})])
    world.cluster_api.append(
        *_new_partitions(topic_id, 0),
        PartitionCountRecord(topic_id=topic_id, initial_partition_count=2, undeleted_partition_count=4),
        *(AliasPartitionRecord(partition_id=child, topic_id=topic_id, parent=child - 2) for child in (2, 3)),
    )
    await world.catch_up()
    keys = [partition_key(world.home.cluster.image.topics_by_name["u"].topic_number, index) for index in range(4)]
    joined = await world.clock.run(_beat(world.home, 0, names=("u",)))
    assert sorted(joined.assignment.topic_partitions[0].partitions) == [0, 1]
    owning.key = keys[2]
    assert (await owning.turn("m"))[0] == ErrorCode.unknown_topic_or_partition
    owning.key = keys[0]
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
    assert world.groups.shares["g"].keys() == set(keys[:2])

    world.groups.shares["g"][keys[2]] = StoredSharePartition(keys[2], 5, encode_kept(()))
    world.cluster_api.append(*_new_partitions(topic_id, 9))
    await world.catch_up()
    joined = await world.clock.run(_beat(world.home, joined.member_epoch, names=("u",)))
    assert sorted(joined.assignment.topic_partitions[0].partitions) == [0, 1, 2, 3]
    owning.key = keys[2]
    assert (await owning.turn("m"))[2] == [(5, 8, 1)]
    owning.key = keys[3]
    assert (await owning.turn("m"))[2] == [(0, 3, 1)], "the doubling said nothing: it begins with its first record"


async def test_other_turns_run_between_the_partitions_of_a_large_acknowledgement(owning: Owning) -> None:
    world, count = owning.world, 4
    head = world.home.cluster.image.offset
    assert await world.cluster_api.create_topics(head, [NewTopic("u", uuid.UUID(int=10), count, {})])
    await world.catch_up()
    await world.clock.run(_beat(world.home, 0, names=("t", "u")))
    owning.logs.end = 2000
    number, others = world.home.cluster.image.topics_by_name["u"].topic_number, [0]
    for index in range(count):
        owning.key = partition_key(number, index)
        assert (await owning.turn("m", max_records=2000))[2] == [(0, 1999, 1)]

    async def run_others() -> None:
        while True:
            others[0] += 1
            await asyncio.sleep(0)

    ran: list[int] = []

    class Watched(SharePartition):
        def acknowledge(self, *args: Any, **more: Any) -> ErrorCode:
            ran.append(others[0])
            return super().acknowledge(*args, **more)

    asks = [PartitionAsk(partition_key(number, index), [(0, 1999, b"\1\2" * 1000)]) for index in range(count)]
    owned = next(iter(owning.owner._owned.values()))
    for partition in owned.group.partitions.values():
        partition.__class__ = Watched
    running = asyncio.create_task(run_others())
    answer = await world.clock.run(owning.owner.turn(ShareTurn("g", "m", asks), owning.client))
    running.cancel()
    assert {each.ack_error for each in answer.partitions} == {0}
    assert ran == sorted(set(ran)), "others ran between each two"


def _new_partitions(topic_id: uuid.UUID, epoch: int) -> list[PartitionRecord]:
    unset: dict[str, Any] = dict.fromkeys(("replicas", "isr", "removing_replicas", "adding_replicas"), ())
    return [
        PartitionRecord(partition_id=n, topic_id=topic_id, leader_epoch=epoch, source=n - 2, source_epoch=0, **unset)
        for n in (2, 3)
    ]
