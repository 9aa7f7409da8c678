"""Heartbeats: unfenced only when caught up, and a controlled shutdown that waits until the others know."""

from __future__ import annotations

import pytest

from headrace.metastore.api.agents import HeartbeatAnswer, RegisteredAgent
from headrace.metastore.log.own_records import ControlledShutdownRecord
from headrace.metastore.log.records import decode_record
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.sessions import beat, create, join, new_agent, new_topic


async def _beat_at(store: PostgresMetastore, agent: RegisteredAgent, offset: int) -> HeartbeatAnswer:
    return await store.cluster.heartbeat(*agent, metadata_offset=offset, want_fence=False, session_timeout_ms=18_000)


@pytest.mark.requirement("C5")
async def test_unfencing_waits_until_the_agent_has_caught_up(metastore: PostgresMetastore) -> None:
    lag = metastore.cluster.settings.metadata_max_lag_records
    agent = await metastore.cluster.register_agent(new_agent())
    head = (await create(metastore, new_topic("wide", 2 * lag))).offset
    for offset in (0, agent.broker_epoch + 1, head - lag - 1, head + 1):
        answer = await _beat_at(metastore, agent, offset)
        assert (answer.is_caught_up, answer.is_fenced, answer.metadata_head) == (False, True, head), offset
    answer = await _beat_at(metastore, agent, head - lag)
    assert (answer.is_caught_up, answer.is_fenced, answer.metadata_head) == (True, False, head + 1)
    answer = await _beat_at(metastore, agent, 0)
    assert (answer.is_caught_up, answer.is_fenced) == (False, False), "who is unfenced is not fenced for lagging"


@pytest.mark.requirement("C5")
async def test_who_has_not_applied_its_own_registration_is_not_caught_up(metastore: PostgresMetastore) -> None:
    agent = await metastore.cluster.register_agent(new_agent())
    assert (await _beat_at(metastore, agent, agent.broker_epoch)).is_fenced
    assert not (await _beat_at(metastore, agent, agent.broker_epoch + 1)).is_fenced


@pytest.mark.requirement("C6")
async def test_who_leaves_drops_out_of_routing_and_goes_when_every_other_knows(metastore: PostgresMetastore) -> None:
    leaving, other, third = await join(metastore), await join(metastore), await join(metastore)
    old_head = await metastore.cluster.metadata_head()
    answer = await beat(metastore, leaving, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (False, False), "it may still commit"
    image = await load_image(metastore.cluster)
    assert [agent.node_id for agent in image.live_agents()] == [other.node_id, third.node_id]
    (record,) = await metastore.cluster.read_metadata(old_head)
    assert decode_record(record) == ControlledShutdownRecord(
        broker_id=leaving.node_id, broker_epoch=leaving.broker_epoch
    )

    await beat(metastore, other)
    await _beat_at(metastore, third, old_head)
    assert not (await beat(metastore, leaving, want_shut_down=True)).should_shut_down, "the third does not know"
    await _beat_at(metastore, third, old_head + 1)
    assert (await beat(metastore, leaving, want_shut_down=True)).should_shut_down
    assert await metastore.cluster.metadata_head() == old_head + 1, "asking again writes nothing"


@pytest.mark.requirement("C6")
async def test_the_last_agent_goes_at_once_and_stays_visible_until_then(metastore: PostgresMetastore) -> None:
    first, last = await join(metastore), await join(metastore)
    assert not (await beat(metastore, first, want_shut_down=True)).should_shut_down
    assert (await beat(metastore, last, want_shut_down=True)).should_shut_down
    assert [agent.node_id for agent in (await load_image(metastore.cluster)).live_agents()] == [last.node_id]
    assert (await beat(metastore, first, want_shut_down=True)).should_shut_down


async def test_a_fenced_agent_may_go_at_once_and_is_not_unfenced_on_its_way(metastore: PostgresMetastore) -> None:
    agent = await metastore.cluster.register_agent(new_agent())
    answer = await beat(metastore, agent, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)


async def test_who_was_leaving_and_registers_again_is_a_member_again(metastore: PostgresMetastore) -> None:
    leaving, other = await join(metastore, 1), await join(metastore, 2)
    await beat(metastore, leaving, want_shut_down=True)
    await metastore.cluster.unregister_agent(*leaving)
    again = await join(metastore, 1)
    assert [a.node_id for a in (await load_image(metastore.cluster)).live_agents()] == [again.node_id, other.node_id]
