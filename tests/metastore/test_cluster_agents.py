"""Agents: registration by incarnation, leases on the database's clock, fencing, and the outage rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.agents import RegisteredAgent
from headrace.metastore.log.kip631_records import (
    FenceBrokerRecord,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.metastore.log.records import decode_record
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import AlreadyExistsError, FencedError
from tests.metastore.sessions import (
    Session,
    beat,
    create,
    fence,
    join,
    move_time,
    new_agent,
    new_topic,
    session,
    waiting,
)

SESSION_MS = 18 * 60_000
"""Time passes by minutes here, so that what the test itself takes is nothing to it."""
PassTime = Callable[[float], Awaitable[None]]


async def _beat(store: PostgresMetastore, agent: RegisteredAgent, *, want_fence: bool = False) -> bool:
    """Return whether the agent is unfenced after its heartbeat and the active controller's next turn."""
    answer = await beat(store, agent, want_fence=want_fence)
    await fence(store, SESSION_MS)
    return not answer.is_fenced


async def _live(store: PostgresMetastore) -> list[int]:
    return [agent.node_id for agent in (await load_image(store.cluster)).live_agents()]


@pytest.fixture
async def metastore(metastore_url: str) -> AsyncIterator[PostgresMetastore]:
    """Yield the metastore with the long session."""
    settings = Settings(metastore_pool_size=4, broker_session_timeout_ms=SESSION_MS)
    store = await PostgresMetastore.open(metastore_url, settings)
    yield store
    await store.close()


@pytest.fixture
async def pass_time(metastore: PostgresMetastore, raw: Session) -> PassTime:
    """Moves the metastore's clock on by minutes. It starts long after the server did, with no agent registered."""
    ahead = 1_000.0 * 60

    async def forward(minutes: float) -> None:
        nonlocal ahead
        ahead += minutes * 60
        await move_time(raw, ahead)

    await forward(0)
    await raw.execute("UPDATE lease_watch SET last_contact_at = wall_time(), resumed_at = '-infinity'")
    return forward


async def _pass_with_heartbeats(pass_time: PassTime, store: PostgresMetastore, agent: RegisteredAgent) -> None:
    """A session timeout and a bit, in which only `agent` is heard."""
    for _ in range(7):
        await pass_time(3)
        assert await _beat(store, agent)


@pytest.mark.requirement("C4")
async def test_the_same_incarnation_gets_the_same_answer_and_a_new_one_a_higher_epoch(
    metastore: PostgresMetastore,
) -> None:
    await create(metastore, new_topic("before"))
    registration = new_agent(7, rack="zone-a")
    first = await metastore.cluster.register_agent(registration)
    head = await metastore.cluster.metadata_head()
    assert await metastore.cluster.register_agent(registration) == first == RegisteredAgent(7, head - 1)
    assert await metastore.cluster.metadata_head() == head

    await metastore.cluster.unregister_agent(*first)
    second = await metastore.cluster.register_agent(new_agent(7))
    assert second.node_id == 7
    assert second.broker_epoch > first.broker_epoch


@pytest.mark.requirement("C4")
async def test_the_broker_epoch_is_the_offset_of_the_record_that_says_so(metastore: PostgresMetastore) -> None:
    await create(metastore, new_topic("before"))
    registration = replace(new_agent(None), host="10.0.0.1", port=19092, rack="zone-a")
    agent = await metastore.cluster.register_agent(registration)
    (data,) = await metastore.cluster.read_metadata(agent.broker_epoch)
    record = decode_record(data)
    assert isinstance(record, RegisterBrokerRecord)
    assert (record.broker_id, record.broker_epoch) == agent
    assert record.incarnation_id == registration.incarnation_id
    shown = (await load_image(metastore.cluster)).agents[agent.node_id]
    assert (shown.host, shown.port, shown.rack, shown.fenced) == ("10.0.0.1", 19092, "zone-a", True)


@pytest.mark.requirement("C5")
async def test_an_agent_starts_fenced_and_is_unfenced_when_it_wants_to_be(metastore: PostgresMetastore) -> None:
    agent = await metastore.cluster.register_agent(new_agent())
    assert not await _beat(metastore, agent, want_fence=True)
    assert await _live(metastore) == []
    quiet = await metastore.cluster.metadata_head()

    assert await _beat(metastore, agent)
    assert await _beat(metastore, agent)
    assert await metastore.cluster.metadata_head() == quiet + 1, "a heartbeat that changes nothing writes no record"
    assert await _live(metastore) == [agent.node_id]
    assert not await _beat(metastore, agent, want_fence=True)

    await metastore.cluster.unregister_agent(*agent)
    records = [decode_record(data) for data in await metastore.cluster.read_metadata(quiet)]
    node_id, epoch = agent
    assert records == [
        UnfenceBrokerRecord(broker_id=node_id, broker_epoch=epoch),
        FenceBrokerRecord(broker_id=node_id, broker_epoch=epoch),
        UnregisterBrokerRecord(broker_id=node_id, broker_epoch=epoch),
    ]


@pytest.mark.requirement("C5")
async def test_a_stale_epoch_is_refused_and_cannot_unregister(metastore: PostgresMetastore) -> None:
    agent = await join(metastore, 3)
    stale = agent._replace(broker_epoch=agent.broker_epoch - 1)
    with pytest.raises(FencedError, match="node_id=3"):
        await _beat(metastore, stale)
    await metastore.cluster.unregister_agent(*stale)
    assert await _live(metastore) == [3]
    await metastore.cluster.unregister_agent(*agent)
    await metastore.cluster.unregister_agent(*agent)
    with pytest.raises(FencedError):
        await _beat(metastore, agent)


@pytest.mark.requirement("C5")
async def test_a_silent_agent_is_fenced_after_a_session_timeout_and_comes_back_with_a_heartbeat(
    metastore: PostgresMetastore, pass_time: PassTime
) -> None:
    silent, heard = await join(metastore), await join(metastore)
    for _ in range(5):
        await pass_time(3)
        await _beat(metastore, heard)
    assert await _live(metastore) == [silent.node_id, heard.node_id], "15 minutes are not 18"
    await pass_time(3.1)
    await _beat(metastore, heard)
    assert await _live(metastore) == [heard.node_id]
    assert silent.node_id in (await load_image(metastore.cluster)).agents, "fenced, but still registered"

    assert await _beat(metastore, silent)
    assert await _live(metastore) == [silent.node_id, heard.node_id]


@pytest.mark.requirement("C4", "C16")
async def test_a_node_id_is_refused_to_others_until_a_session_timeout_after_its_last_contact(
    metastore: PostgresMetastore, pass_time: PassTime
) -> None:
    holder, witness = await join(metastore, 1), await join(metastore, 2)
    with pytest.raises(AlreadyExistsError, match="node_id=1"):
        await metastore.cluster.register_agent(new_agent(1))
    assert await _beat(metastore, holder), "the holder is not disturbed"

    await _pass_with_heartbeats(pass_time, metastore, witness)
    successor = await metastore.cluster.register_agent(new_agent(1))
    assert successor.broker_epoch > holder.broker_epoch
    with pytest.raises(FencedError):
        await _beat(metastore, holder)


@pytest.mark.requirement("C4")
async def test_a_fenced_agent_that_is_heard_keeps_its_node_id(
    metastore: PostgresMetastore, pass_time: PassTime
) -> None:
    fenced = await metastore.cluster.register_agent(new_agent(1))
    for _ in range(10):
        await pass_time(3)
        await _beat(metastore, fenced, want_fence=True)
    with pytest.raises(AlreadyExistsError):
        await metastore.cluster.register_agent(new_agent(1))


@pytest.mark.requirement("C16")
async def test_leased_node_ids_are_distinct_lowest_first_and_reused_only_when_free(
    metastore: PostgresMetastore, pass_time: PassTime
) -> None:
    await join(metastore, 2)
    agents = await asyncio.gather(*(metastore.cluster.register_agent(new_agent()) for _ in range(6)))
    assert sorted(agent.node_id for agent in agents) == [1, 3, 4, 5, 6, 7]
    left, silent, witness = (next(a for a in agents if a.node_id == n) for n in (3, 5, 7))
    await metastore.cluster.unregister_agent(*left)
    assert (await metastore.cluster.register_agent(new_agent())).node_id == 3
    assert (await metastore.cluster.register_agent(new_agent())).node_id == 8

    everybody = [
        RegisteredAgent(a.node_id, a.broker_epoch) for a in (await load_image(metastore.cluster)).agents.values()
    ]
    for _ in range(7):
        await pass_time(3)
        for agent in everybody:
            if agent != silent:
                await _beat(metastore, agent)
    taken_over = await metastore.cluster.register_agent(new_agent())
    assert taken_over.node_id == silent.node_id
    assert taken_over.broker_epoch > witness.broker_epoch


@pytest.mark.requirement("C16")
async def test_of_many_who_claim_one_node_id_at_once_one_gets_it(metastore: PostgresMetastore) -> None:
    answers = await asyncio.gather(
        *(metastore.cluster.register_agent(new_agent(5)) for _ in range(4)), return_exceptions=True
    )
    assert len([answer for answer in answers if isinstance(answer, RegisteredAgent)]) == 1
    assert len([answer for answer in answers if isinstance(answer, AlreadyExistsError)]) == 3


async def test_a_lease_renewed_while_others_wait_to_fence_it_is_kept(
    metastore: PostgresMetastore, metastore_url: str, pass_time: PassTime
) -> None:
    """The clock is read, and the lease judged again, after the lock."""
    late, heard = await join(metastore), await join(metastore)
    for _ in range(6):
        await pass_time(2.9)
        await _beat(metastore, heard)
    await pass_time(2)  # `late` has been silent for 19.4 minutes, `heard` for 2
    async with session(metastore_url) as gate, session(metastore_url) as observer:
        async with gate.transaction():
            await gate.execute("SELECT FROM agent_leases WHERE node_id = %s FOR UPDATE", (late.node_id,))
            fencing = asyncio.create_task(_beat(metastore, heard))
            await waiting(observer, 1)
            await gate.execute(
                "UPDATE agent_leases SET last_contact_at = wall_time(), held_until = wall_time() + interval '18 min'"
                " WHERE node_id = %s",
                (late.node_id,),
            )
        assert await fencing
    assert await _live(metastore) == [late.node_id, heard.node_id]


async def test_after_all_were_silent_none_is_fenced_or_replaced_for_a_session_timeout(
    metastore: PostgresMetastore, pass_time: PassTime
) -> None:
    """An outage between agents and metastore, or a stopped machine: the silence was not theirs."""
    first, second = await join(metastore, 1), await join(metastore, 2)
    await pass_time(3600)
    assert await _beat(metastore, first)
    assert await _live(metastore) == [1, 2]
    for _ in range(5):
        await pass_time(3)
        with pytest.raises(AlreadyExistsError):
            await metastore.cluster.register_agent(new_agent(2))
        assert await _beat(metastore, first)
    assert await _live(metastore) == [1, 2]
    assert await _beat(metastore, second), "it came back in time"

    await _pass_with_heartbeats(pass_time, metastore, first)
    assert await _live(metastore) == [1], "from then on silence counts"


async def test_refused_registrations_alone_end_the_grace_after_an_outage(
    metastore: PostgresMetastore, pass_time: PassTime
) -> None:
    """All agents crashed with the metastore; their successors must get their ids without any heartbeat."""
    await join(metastore, 1)
    await pass_time(3600)
    registration = new_agent(1)
    for _ in range(6):
        with pytest.raises(AlreadyExistsError):
            await metastore.cluster.register_agent(registration)
        await pass_time(3)
    assert (await metastore.cluster.register_agent(registration)).node_id == 1


async def test_after_a_restart_of_postgres_none_is_fenced_for_a_session_timeout(
    metastore: PostgresMetastore, raw: Session
) -> None:
    """The machine's own clock at first: the server of this test run started less than a week ago."""
    silent, heard = await join(metastore), await join(metastore)
    week_ms = 7 * 86_400_000
    await raw.execute("UPDATE lease_watch SET resumed_at = '-infinity'")
    await raw.execute(
        "UPDATE agent_leases SET last_contact_at = '-infinity', held_until = '-infinity' WHERE node_id = %s",
        (silent.node_id,),
    )
    await fence(metastore, week_ms)
    assert await _live(metastore) == [silent.node_id, heard.node_id]

    await move_time(raw, 8 * 86_400)
    await raw.execute(
        "UPDATE agent_leases SET last_contact_at = wall_time(), held_until = wall_time() + interval '1 min'"
        " WHERE node_id = %s",
        (heard.node_id,),
    )
    await fence(metastore, week_ms)
    assert await _live(metastore) == [heard.node_id]
