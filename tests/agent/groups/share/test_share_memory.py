"""What clients of share groups make their owner remember: by which connection they came, and ranges of records."""

from __future__ import annotations

import random

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.share.in_flight import AckBatch, AcquireLimits
from headrace.agent.groups.share.share_memory import (
    IN_FLIGHT_BYTES,
    MEMBER_BYTES,
    REF_BYTES,
    MemberConnections,
    Ref,
    ShareMemory,
)
from headrace.agent.groups.share.share_partition import FEW_RANGES, SharePartition
from headrace.agent.limits.client_memory import text_bytes
from headrace.agent.peers.share_turns import PartitionAsk, ShareTurn
from headrace.protocol.request import ClientConnection
from tests.agent.groups.share.test_share_owner import Owning, owning

__all__ = ["owning"]
LIMITS = AcquireLimits(30.0, 5, 2000)
Range = tuple[int, int]
ONE_MEMBER = MEMBER_BYTES + text_bytes("g", "m")


def _noting(limit_bytes: int = 1 << 20) -> tuple[MemberConnections, ShareMemory, list[Ref]]:
    memory, gone = ShareMemory(limit_bytes), list[Ref]()
    return MemberConnections(memory, gone.extend), memory, gone


def test_the_end_of_a_session_forgets_all_that_its_member_asked_for() -> None:
    """Also what the session had not any more at its end."""
    connections, memory, gone = _noting()
    client, other = ClientConnection(1, "a:1"), ClientConnection(2, "a:2")
    assert connections.note(client, "g", "m", [1, 2]).keys == [1, 2]
    assert connections.note(client, "g", "m", [3]).keys == [3]
    assert connections.note(client, "g", "n", [3]).keys == [3]
    assert memory.in_use_bytes == 2 * ONE_MEMBER + 4 * REF_BYTES
    assert connections.note(other, "g", "m", [2]).keys == [2]
    assert connections.end_session(client, "g", "m") == [("g", "m", 1), ("g", "m", 3)], "2 is the other connection's"
    assert connections.end_session(client, "g", "m") == []
    assert connections.get(("g", "m", 2)) is other
    assert client.when_closed is not None
    client.closed = True
    client.when_closed()
    assert (gone, len(connections)) == ([("g", "n", 3)], 1)
    assert connections.note(client, "g", "m", [1]).keys == [], "it is gone"
    assert connections.end_session(other, "g", "m") == [("g", "m", 2)]
    assert memory.in_use_bytes == 0


def test_connections_are_noted_while_their_address_has_room() -> None:
    connections, memory, _ = _noting(2 * (ONE_MEMBER + 2 * REF_BYTES))
    first, second, other = ClientConnection(1, "a:1"), ClientConnection(2, "a:2"), ClientConnection(3, "b:1")
    assert connections.note(first, "g", "m" * 32_767, [1]).keys == [], "a long id"
    assert connections.note(first, "g", "m", [1, 2, 3]).keys == [1, 2]
    assert connections.note(first, "g", "m", [2, 3, 1]).keys == [2]
    assert connections.note(second, "g", "n", [1]).keys == []
    assert connections.note(other, "g", "n", [1]).keys == [1]
    assert len(connections) == 3
    connections.end_session(first, "g", "m")
    assert connections.note(second, "g", "n", [1]).keys == [1]
    assert memory.in_use_bytes <= 2 * (ONE_MEMBER + 2 * REF_BYTES)


def _attack(partition: SharePartition, rng: random.Random) -> int:
    """Do what makes many ranges, without room, and return the most that there were."""
    now, most, held = 0.0, 0, list[tuple[str, int, int]]()
    for _ in range(300):
        now += rng.choice((0.0, 1.0, 40.0))
        member, records = rng.choice("ab"), rng.choice((1, 1, 5, 500))
        held += [
            (member, *each[:2]) for each in partition.acquire(now, member, 9_000, records, LIMITS, is_sparing=True)
        ]
        for _ in range(rng.randint(0, 3) if held else 0):
            member, first, last = held.pop(rng.randrange(len(held)))
            types = [rng.choice((1, 2, 2, 4)) for _ in range(first, last + 1)]
            partition.acknowledge(now, member, [AckBatch(first, last, types)], LIMITS, may_grow=False)
            if not held:
                break
        if rng.random() < 0.1:
            partition.release(rng.choice("ab"), LIMITS.attempts)
        most = max(most, len(partition.ranges))
    return most


@pytest.mark.parametrize("spans", [0, 300])
def test_without_room_ranges_stay_few_and_are_worked_off(spans: int) -> None:
    """With any requests of a member; and one that accepts all gets all."""
    for seed in range(8):
        partition, rng = SharePartition(0), random.Random(seed)
        if spans:  # there was room before
            partition.acquire(0.0, "a", 9_000, 2 * spans, LIMITS)
            partition.acknowledge(0.0, "a", [AckBatch(0, 2 * spans - 1, [1, 2] * spans)], LIMITS)
        before = len(partition.ranges)
        assert _attack(partition, rng) <= max(before, FEW_RANGES) + 3, f"{seed=}"
        now, size = 100_000.0, rng.choice((1, 7, 500))
        for _ in range(10_000):
            now += 31.0
            got = partition.acquire(now, "c", 600, size, LIMITS, is_sparing=True)
            if not got:
                break
            batches = [AckBatch(each.first, each.last, [1]) for each in got]
            assert partition.acknowledge(now, "c", batches, LIMITS, may_grow=False) is ErrorCode.none
        assert (partition.start, len(partition.ranges)) == (max(600, partition.start), 0), f"{seed=}"


async def _turn(owning: Owning, client: ClientConnection, *acks: tuple[int, int, bytes]) -> tuple[int, list[Range]]:
    """Ask for 400 records, or acknowledge. (the code, the first and last offsets of what was acquired)."""
    ask = PartitionAsk(owning.key, list(acks), wants=not acks)
    turn = ShareTurn("g", "m", [ask], 400)
    (part,) = (await owning.world.clock.run(owning.owner.turn(turn, client))).partitions
    assert part.error == 0
    return part.ack_error, [(first, last) for first, last, _ in part.acquired]


async def test_a_group_without_room_for_ranges_makes_no_more_and_goes_on(owning: Owning) -> None:
    owner, client = owning.owner, ClientConnection(7, "h:7")
    owning.logs.end = 5_000
    owner.memory._limit = limit = 2 * (ONE_MEMBER + REF_BYTES + 300 * IN_FLIGHT_BYTES)
    groups = owning.world.home.requests.memory
    assert await _turn(owning, client) == (0, [(0, 399)])
    await owning.world.clock.advance(1.0)
    before = groups.in_use_bytes
    assert await _turn(owning, client, (0, 399, b"\1\2" * 200)) == (0, []), "there was room before"
    assert 2 * owner.memory.in_use_bytes > limit
    await owning.world.clock.advance(1.0)
    assert groups.in_use_bytes <= before, "no member is kept out of a group for it"
    got = await _turn(owning, client)
    assert got == (0, [(1, 1)]), "one range"
    turns = 0
    while len(got[1]) == 1:
        assert await _turn(owning, client, *((*each, b"\1") for each in got[1])) == (0, [])
        got, turns = await _turn(owning, client), turns + 1
    assert (turns, got[1][0], got[1][-1]) == (50, (101, 101), (400, 649)), "with room again it gets what it asks for"


async def test_an_acknowledgement_that_would_leave_more_ranges_is_refused_without_room(owning: Owning) -> None:
    owner, client = owning.owner, ClientConnection(7, "h:7")
    owning.logs.end = 5_000
    assert await _turn(owning, client) == (0, [(0, 399)])
    owner.memory._limit = 1
    assert await _turn(owning, client, (0, 399, b"\1\2" * 200)) == (ErrorCode.kafka_storage_error, [])
    assert await _turn(owning, client, (0, 399, b"\1")) == (0, []), "nothing had changed"
    assert owning.world.groups.shares["g"][owning.key].start_offset == 400


async def test_the_memory_of_a_group_and_of_connections_is_free_when_they_end(owning: Owning) -> None:
    client = ClientConnection(7, "h:7")
    await _turn(owning, client)
    assert owning.owner.memory.in_use_bytes == ONE_MEMBER + REF_BYTES + IN_FLIGHT_BYTES
    (owned,) = owning.owner._owned.values()
    owning.owner.drop(owned)
    assert owning.owner.memory.in_use_bytes == ONE_MEMBER + REF_BYTES
    assert client.when_closed is not None
    client.when_closed()
    assert owning.owner.memory.in_use_bytes == 0


async def test_a_group_begins_no_partitions_that_have_no_room(owning: Owning) -> None:
    groups = owning.world.home.requests.memory
    groups._total, total = 1, groups._total
    assert (await owning.turn("m"))[0] == ErrorCode.kafka_storage_error
    assert owning.world.groups.shares["g"] == {}
    groups._total = total
    assert (await owning.turn("m"))[2] == [(0, 3, 1)]
