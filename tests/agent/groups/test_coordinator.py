"""Coordination in time and between agents: deadlines, claims, moves, leases and fencing."""

from __future__ import annotations

import asyncio
import itertools
import uuid

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic import saved
from headrace.agent.groups.group_memory import SAVES_AT_ONCE
from headrace.agent.groups.held_groups import IDLE_SECONDS
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.life.numbers import NUMBER_BITS, epoch_floor
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.errors import CorruptError, InvalidError, UnavailableError
from tests.agent.cluster.made_agents import an_agent_on
from tests.agent.groups.groups_world import Coordinating, GroupsWorld

NOT_COORDINATOR = ErrorCode.not_coordinator


async def test_a_silent_member_makes_room(world: GroupsWorld) -> None:
    home, clock = world.home, world.clock
    silent = await home.only_member()
    waiting = asyncio.create_task(home.join("g", version=3))
    await clock.advance(9.8)
    assert not waiting.done()
    await clock.advance(0.4)
    joined = await waiting
    assert (joined.error_code, [m.member_id for m in joined.members]) == (0, [joined.member_id])
    assert await home.heartbeat("g", silent, 1) == ErrorCode.unknown_member_id


async def test_heartbeats_keep_a_member(world: GroupsWorld) -> None:
    member = await world.home.only_member()
    for _ in range(10):
        await world.clock.advance(9)
        assert await world.home.heartbeat("g", member, 1) == 0


async def test_a_rebalance_ends_at_its_timeout(world: GroupsWorld) -> None:
    home, clock = world.home, world.clock
    slow = await home.only_member()
    waiting = asyncio.create_task(home.join("g", version=3))
    for _ in range(12):
        await clock.advance(5)
        await home.heartbeat("g", slow, 1)
    await clock.advance(0.1)
    assert (await waiting).generation_id == 2


async def test_many_requests_claim_a_group_once(world: GroupsWorld) -> None:
    codes = await asyncio.gather(*(world.home.heartbeat("g", f"m{n}", 1) for n in range(20)))
    assert set(codes) == {ErrorCode.unknown_member_id}
    assert world.groups.calls["claim_group"] == 1


async def test_the_next_coordinator_goes_on_without_a_rebalance(world: GroupsWorld) -> None:
    """The first one leaves in good order; its member hears nothing of it but a new address."""
    home, heir = world.home, world.other
    member = await home.only_member()
    await world.clock.run(home.cluster.stop())
    await heir.cluster.catch_up()
    assert await heir.heartbeat("g", member, 1) == 0
    await world.clock.advance(9)
    assert await heir.heartbeat("g", member, 1) == 0
    synced = await heir.sync("g", member, 1, {})
    assert (synced.error_code, synced.assignment) == (0, b"all")


async def test_when_routing_changes_waiting_members_are_redirected(world: GroupsWorld) -> None:
    home, heir = world.home, world.other
    member = await home.only_member()
    waiting = asyncio.create_task(home.join("g", version=3))
    await world.clock.settle()
    assert not waiting.done()
    own = home.cluster.node_id
    world.cluster_api._set_fenced(own, True)
    await world.catch_up()
    await world.clock.advance(0.1)
    assert (await waiting).error_code == NOT_COORDINATOR
    assert await home.heartbeat("g", member, 1) == NOT_COORDINATOR
    assert await heir.heartbeat("g", member, 1) == 0
    assert world.groups.groups["g"].epoch == 2  # claimed again


async def test_without_a_lease_nothing_is_coordinated(world: GroupsWorld) -> None:
    home, clock = world.home, world.clock
    member = await home.only_member()
    waiting = asyncio.create_task(home.join("g", version=3))
    world.cluster_api.fail_before["heartbeat"] = [UnavailableError("down")] * 100
    for _ in range(5):
        await clock.advance(5)
        await home.heartbeat("g", member, 1)
    assert (await waiting).error_code == NOT_COORDINATOR
    assert await home.heartbeat("g", member, 1) == ErrorCode.coordinator_not_available
    world.cluster_api.fail_before["heartbeat"].clear()
    await clock.advance(4)
    assert await home.heartbeat("g", member, 1) == 0  # restored as it was stored
    assert world.groups.calls["claim_group"] == 2


async def test_a_successors_claim_fences_saves_and_commits(home: Coordinating, world: GroupsWorld) -> None:
    world.cluster_api.add_topic("orders")
    member = await home.only_member()
    world.groups.take_over("g")
    fenced = await home.commit("g", {"orders": {0: 1}}, member_id=member, generation=1)
    assert fenced == {"orders": {0: NOT_COORDINATOR}}
    assert world.groups.offsets["g"] == {}
    joined = await home.join("g", member, version=3)
    assert world.groups.calls["claim_group"] == 2  # claimed again: here is still the coordinator by routing
    world.groups.take_over("g")
    synced = await home.sync("g", member, joined.generation_id, {member: b"new"})
    assert synced.error_code == NOT_COORDINATOR
    stored = world.groups.saved("g")
    assert [m.assignment for m in stored.members] == [b"all"]


async def test_a_generation_of_a_new_life_is_above_all_of_the_old_one(home: Coordinating, world: GroupsWorld) -> None:
    """The old life completed more generations than Postgres kept: their numbers must not come again."""
    member = await home.only_member()
    world.groups.epochs = itertools.count(1 << NUMBER_BITS)  # as claims of life 1 get them
    world.groups.take_over("g")
    world.cluster_api.add_topic("orders")
    await home.commit("g", {"orders": {0: 1}}, member_id=member, generation=1)  # notices that the claim is gone
    assert await home.heartbeat("g", member, 1) == 0, "what was kept goes on"
    joined = await home.join("g", member, version=3)
    assert joined.generation_id == epoch_floor(1)
    await home.sync("g", member, joined.generation_id, {member: b"new"})
    again = await home.join("g", member, version=3)
    assert again.generation_id == epoch_floor(1) + 1


async def test_a_new_registration_claims_again(home: Coordinating, world: GroupsWorld) -> None:
    member = await home.only_member()
    own = home.cluster.node_id
    del world.cluster_api.agents[own]
    home.cluster.membership.check_now()
    await world.clock.advance(2)
    assert await home.heartbeat("g", member, 1) == 0
    assert world.groups.calls["claim_group"] == 2


async def test_idle_groups_are_forgotten_and_found_again(home: Coordinating, world: GroupsWorld) -> None:
    world.cluster_api.add_topic("orders")
    await home.commit("g", {"orders": {0: 7}})
    await world.clock.advance(IDLE_SECONDS - 1)
    await home.commit("g", {"orders": {0: 8}})
    await world.clock.advance(IDLE_SECONDS - 1)
    assert world.groups.calls["claim_group"] == 1
    await world.clock.advance(2)
    assert (await home.fetch("g", {"orders": [0]}))[1]["orders"][0][0] == 8
    await home.commit("g", {"orders": {0: 9}})
    assert world.groups.calls["claim_group"] == 2


async def test_a_client_that_goes_while_it_waits_does_no_harm(home: Coordinating, world: GroupsWorld) -> None:
    member = await home.only_member()
    gone = asyncio.create_task(home.join("g", version=3))
    await world.clock.settle()
    gone.cancel()
    joined = await home.join("g", member, version=3)
    assert len(joined.members) == 2
    await home.sync("g", member, 2, {member: b"half"})
    for _ in range(13):
        await world.clock.advance(5)
        await home.heartbeat("g", member, 2)
    again = await home.join("g", member, version=3)
    assert [m.member_id for m in again.members] == [member]


async def test_saves_of_one_group_are_stored_in_order(world: GroupsWorld) -> None:
    home, slow = world.home, asyncio.Event()
    joined = await home.join("g", instance_id="i-1", version=5)
    world.groups.gates["save_group"] = [slow]
    first = asyncio.create_task(home.sync("g", joined.member_id, 1, {joined.member_id: b"old"}, version=2))
    await world.clock.settle()
    second = asyncio.create_task(home.join("g", instance_id="i-2", version=5))
    await world.clock.settle()
    assert (await first).error_code == ErrorCode.rebalance_in_progress  # overtaken by the second member
    told = await home.join("g", joined.member_id, instance_id="i-1", version=5)
    assignments = {m.member_id: b"new" for m in told.members}
    third = asyncio.create_task(home.sync("g", joined.member_id, 2, assignments, version=2))
    await world.clock.settle()
    slow.set()
    await world.clock.settle()
    assert (await third).assignment == b"new"
    assert (await second).error_code == 0
    stored = world.groups.saved("g")
    assert stored.generation == 2


async def test_closing_answers_waiting_requests(home: Coordinating, world: GroupsWorld) -> None:
    await home.only_member()
    waiting = asyncio.create_task(home.join("g", version=3))
    await world.clock.settle()
    await home.requests.close()
    assert (await waiting).error_code == NOT_COORDINATOR


def test_saved_groups_of_other_formats_are_refused() -> None:
    state = saved.SavedGroup(3, "consumer", "range", "m", [], format=2)
    with pytest.raises(InvalidError, match="format=2"):
        saved.decode(saved.encode(state))
    with pytest.raises(CorruptError, match="damaged"):
        saved.decode(b"\xc1garbage")


async def test_a_group_on_a_real_metastore(metastore: PostgresMetastore) -> None:
    """Two coordinators one after the other: members, generation and positions are carried on."""

    def an_agent(seed: int) -> Coordinating:
        return Coordinating(an_agent_on(metastore, None, seed), metastore, SystemClock(), seed)

    first, second = an_agent(1), an_agent(2)
    await first.cluster.start()
    image = first.cluster.image
    assert await metastore.topics.create_topics(image.offset, [NewTopic("orders", uuid.uuid4(), 2, {})])
    member = await first.only_member()
    answer = await first.commit("g", {"orders": {0: 5, 1: 6}}, member_id=member, generation=1)
    assert answer == {"orders": {0: 0, 1: 0}}
    await first.requests.close()
    await first.cluster.stop()
    await second.cluster.start()
    assert await second.heartbeat("g", member, 1) == 0
    assert (await second.fetch("g", None))[1]["orders"] == {0: (5, 3, "m", 0), 1: (6, 3, "m", 0)}
    answer = await second.commit("g", {"orders": {0: 9}}, member_id=member, generation=1)
    assert answer == {"orders": {0: 0}}
    await second.requests.close()
    await second.cluster.stop()


async def test_few_groups_are_encoded_at_once(world: GroupsWorld) -> None:
    """However many change: each that is encoded uses as much memory again."""
    cluster = world.home.cluster
    holders = {name: cluster.coordinator(name) for name in map(str, range(8 * SAVES_AT_ONCE))}
    names = [name for name, holder in holders.items() if holder is not None and holder.node_id == cluster.node_id]
    assert len(names) > 2 * SAVES_AT_ONCE
    joined = [(name, await world.home.join(name, version=3)) for name in names]
    await world.clock.settle()
    world.groups.calls.clear()
    world.groups.gates["save_group"] = gates = [asyncio.Event() for _ in names]
    syncing = [
        asyncio.create_task(world.home.sync(name, each.member_id, 1, {each.member_id: b"all"})) for name, each in joined
    ]
    opened = list(gates)
    await world.clock.settle()
    assert world.groups.calls["save_group"] == SAVES_AT_ONCE
    for gate in opened:
        gate.set()
    assert {answer.error_code for answer in await asyncio.gather(*syncing)} == {0}
    assert world.groups.calls["save_group"] == len(names)
