"""What a new group may be called and whether there is room for it; a stored one is served with any id."""

from __future__ import annotations

import pytest
from kafka.protocol.producer import AddOffsetsToTxnRequest
from kio.schema.errors import ErrorCode

from headrace.agent.limits.client_rows import COMMITTED_OFFSETS
from headrace.agent.limits.client_texts import ID_BYTES_MAX, is_long
from headrace.agent.transactions.producer_requests import AddOffsetsToTxn
from headrace.metastore.api.groups import CommittedOffset
from tests.agent.client_calls import call
from tests.agent.groups.consumer.test_requests import heartbeat
from tests.agent.groups.fake_group_api import FakeGroup
from tests.agent.groups.groups_world import Coordinating, GroupsWorld
from tests.agent.transactions.memory_transactions import MemoryTransactions
from tests.manual_clock import ManualClock

WORLD_TOPICS = {"t": 4}
pytestmark = pytest.mark.requirement("X7")
INVALID, FULL = ErrorCode.invalid_group_id, ErrorCode.policy_violation
MIB = 1024 * 1024


class RowLimits:
    """Says what the test says."""

    def __init__(self) -> None:
        self.room = True
        self.refusals = 0

    async def has_room(self, limit: str, rows: int = 1) -> bool:
        assert limit == COMMITTED_OFFSETS
        assert rows > 0
        return self.room

    def refused(self, limit: str) -> None:
        self.refusals += limit == COMMITTED_OFFSETS


def a_name(world: GroupsWorld, length: int) -> str:
    """Return a name of a group that `home` coordinates."""
    names = (f"{number:06d}".ljust(length, "g") for number in range(99))
    return next(name for name in names if world.coordinator(name) is world.home)


def key_of(world: GroupsWorld, index: int) -> int:
    key = world.home.cluster.image.topics_by_name["t"].key(index)
    assert key is not None
    return key


def limited(agent: Coordinating) -> RowLimits:
    """The agent's groups and offsets ask these limits from now on."""
    limits = RowLimits()
    agent.requests.groups._new_groups.rows = limits
    agent.handlers[8]._offsets._rows = limits  # type: ignore[attr-defined]
    return limits


async def test_a_new_group_id_has_a_largest_length(home: Coordinating, world: GroupsWorld) -> None:
    shortest, longest = a_name(world, ID_BYTES_MAX), a_name(world, ID_BYTES_MAX + 1)
    assert await home.commit(shortest, {"t": {0: 5}}) == {"t": {0: 0}}
    assert await home.commit(longest, {"t": {0: 5}}) == {"t": {0: INVALID}}
    assert (await home.join(longest)).error_code == INVALID
    assert (await heartbeat(home, "m", 0, group_id=longest)).error_code == INVALID
    assert await home.commit_pending(longest, "t", 5) == INVALID
    assert set(world.groups.groups) == {shortest}, "nothing was claimed"
    assert is_long("é" * (ID_BYTES_MAX // 2 + 1)), "bytes of UTF-8"


async def test_an_id_that_cannot_have_been_stored_asks_no_metastore(world: GroupsWorld) -> None:
    assert await world.home.commit(a_name(world, 2 * MIB), {"t": {0: 5}}, version=8) == {"t": {0: INVALID}}
    assert world.groups.calls["list_groups"] == 0


async def test_a_stored_group_with_a_long_id_is_served(world: GroupsWorld) -> None:
    name = a_name(world, 100_000)
    world.groups.groups[name] = FakeGroup(0)
    world.groups.offsets[name][key_of(world, 0)] = CommittedOffset(key_of(world, 0), 3, -1, "")
    assert await world.home.commit(name, {"t": {0: 5, 1: 6}}, version=8) == {"t": {0: 0, 1: 0}}
    assert (await heartbeat(world.home, "m", 0, group_id=name)).error_code == 0
    code, topics = await world.home.fetch(name, {"t": [0, 1]}, version=6)
    assert (code, topics["t"][1][0]) == (0, 6)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_transaction_takes_a_long_group_id_if_it_is_stored(is_stored: bool) -> None:
    transactions = MemoryTransactions()

    async def stored(group_ids: object) -> list[object]:
        return [group_ids] if is_stored else []

    message = AddOffsetsToTxnRequest(transactional_id="tx", producer_id=7, producer_epoch=0, group_id="g" * 3_000)
    answer = await call(AddOffsetsToTxn(transactions, stored), message, 3)  # type: ignore[arg-type]
    assert (answer.error_code == INVALID) is not is_stored


async def test_what_a_member_brings_is_counted(world: GroupsWorld, fake_clock: ManualClock) -> None:
    home, memory = world.home, world.home.requests.groups.memory
    assert (
        await heartbeat(home, "m", 0, group_id="g", rack_id="r" * (2 * MIB))
    ).error_code == ErrorCode.invalid_request
    before = memory.in_use_bytes
    assert (await heartbeat(home, "m", 0, group_id="g", rack_id="\U0001f600" * 100_000)).error_code == 0
    assert memory.in_use_bytes - before > 400_000, "four bytes for each character, before it is measured"
    await fake_clock.advance(1)
    assert memory.in_use_bytes - before > 400_000
    joined = await home.join(a_name(world, 12), protocol_type="p" * (2 * MIB), version=6)
    assert joined.error_code == ErrorCode.invalid_request
    answer = await heartbeat(home, "n", 0, group_id="g", instance_id="x" * (2 * MIB))
    assert answer.error_code == ErrorCode.invalid_request


async def test_ids_that_were_promised_are_counted_with_their_text(world: GroupsWorld, fake_clock: ManualClock) -> None:
    group = a_name(world, 10)
    for _ in range(20):
        await world.home.join(group, version=5, instance_id=None)
    await fake_clock.advance(0.1)
    used = world.home.requests.groups.memory.in_use_bytes
    (held,) = [held for held in world.home.requests.groups if held.group.group_id == group]
    texts = sum(len(member_id) for _, member_id in held.group._promised_ids.addresses())  # type: ignore[attr-defined]
    assert used > texts + 20 * 256


# -- room in the metastore


async def test_without_room_new_groups_are_refused_and_stored_ones_are_not(world: GroupsWorld) -> None:
    home, limits = world.home, limited(world.home)
    old, new = [name for name in (f"n-{n}" for n in range(99)) if world.coordinator(name) is home][:2]
    assert await home.commit(old, {"t": {0: 5}}) == {"t": {0: 0}}
    limits.room = False
    assert await home.commit(new, {"t": {0: 5}}) == {"t": {0: FULL}}
    assert (await home.join(new, version=3)).error_code == FULL
    assert limits.refusals == 3, "the offset and its group, then the group"
    assert await home.commit(old, {"t": {0: 6, 1: 7}}) == {"t": {0: 0, 1: FULL}}, "its own offset goes on"
    assert await home.commit_pending(old, "t", 8) == 0
    assert (await home.fetch(old, {"t": [0, 1]}))[1]["t"][1][0] == -1
    for held in home.requests.groups:
        home.requests.groups.drop(held)
    assert await home.commit(old, {"t": {0: 9}}) == {"t": {0: 0}}, "also when it is claimed again"
    limits.room = True
    assert await home.commit(new, {"t": {0: 5}}) == {"t": {0: 0}}
