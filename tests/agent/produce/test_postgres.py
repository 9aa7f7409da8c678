"""The write path on the real metastore: two agents, one bucket, one database."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange
from tests.agent.produce.produce_world import Answer, ProduceWorld
from tests.metastore.sessions import beat
from tests.storage.batches import plain_batch

TOPIC_ID = uuid.UUID(int=77)


async def _agents(metastore: PostgresMetastore, count: int) -> list[ProduceWorld]:
    """Registered and unfenced, with the topic `t` in their images, sharing a bucket.

    Their clock is the machine's, as the database's is: one that moves by itself would outrun a slow Postgres.
    """
    head = await metastore.cluster.metadata_head()
    assert await metastore.topics.create_topics(head, [NewTopic("t", TOPIC_ID, 2, {})])
    worlds = [ProduceWorld(seed=number, linger_ms=25) for number in range(count)]
    for world in worlds:
        world.clock = SystemClock()  # type: ignore[assignment]
    for number, world in enumerate(worlds):
        registration = AgentRegistration(number, uuid.UUID(int=number + 1), "127.0.0.1", 9092, None)
        agent = await metastore.cluster.register_agent(registration)
        assert not (await beat(metastore, agent)).is_fenced
        world.view.node_id, world.view.broker_epoch = agent
        world.view.image = world.view.head = await load_image(metastore.cluster)
        world.store, world.metastore = worlds[0].bucket, metastore
        await world.start()
    return worlds


async def _stored(metastore: PostgresMetastore, world: ProduceWorld, index: int) -> list[bytes]:
    """The bytes of each extent of a partition of `t`."""
    key = world.view.image.topics_by_name["t"].key(index)
    assert key is not None
    (found,) = await metastore.index.find_extents([ExtentQuery(key, 0, 1 << 20)])
    return [await world.store.get(object_key(e.file_id), ByteRange(e.position, e.length)) for e in found.extents]


@pytest.mark.requirement("W7")
async def test_copies_committed_by_different_agents_are_appended_once(metastore: PostgresMetastore) -> None:
    first, second = await _agents(metastore, 2)
    batch = plain_batch(3, producer_id=1000, producer_epoch=0, base_sequence=0)
    plain = plain_batch(2)
    copies = [asyncio.create_task(world.produce(world.connect(), {"t": {0: batch}})) for world in (first, second)]
    await asyncio.wait(copies)
    await first.produce(first.connect(), {"t": {0: plain}})
    again = await second.produce(second.connect(), {"t": {0: batch}})
    answers = [found[("t", 0)] for found in (copies[0].result(), copies[1].result(), again)]
    assert {answer.log_start_offset for answer in answers} <= {-1, 0}, "as far as its agent knows"
    assert {answer._replace(log_start_offset=-1) for answer in answers} == {Answer("none", 0, -1, -1, None)}
    assert await _stored(metastore, first, 0) == [batch, plain]
    assert first.metric("duplicates_total") + second.metric("duplicates_total") == 2
    for world in (first, second):
        await world.pipeline.close()


async def test_a_fenced_agent_goes_on_under_a_new_epoch(metastore: PostgresMetastore) -> None:
    (world,) = await _agents(metastore, 1)
    await metastore.cluster.unregister_agent(world.view.node_id, world.view.broker_epoch)
    fenced = asyncio.Event()
    world.on_fenced = fenced.set
    sent = asyncio.create_task(world.produce(world.connect(), {"t": {1: plain_batch(1)}}))
    await fenced.wait()
    assert not sent.done()
    registration = AgentRegistration(world.view.node_id, uuid.UUID(int=99), "127.0.0.1", 9092, None)
    agent = await metastore.cluster.register_agent(registration)
    assert not (await beat(metastore, agent)).is_fenced
    world.view.broker_epoch = agent.broker_epoch
    assert await sent == {("t", 1): Answer("none", 0, -1, 0, None)}
    await world.pipeline.close()


async def test_refusals_of_a_real_commit_are_per_batch(metastore: PostgresMetastore) -> None:
    (world,) = await _agents(metastore, 1)
    client = world.connect(producer_id=1000)
    first, gap = (plain_batch(1, producer_id=1000, producer_epoch=0, base_sequence=each) for each in (0, 5))
    await world.produce(client, {"t": {0: first}})
    answers = await world.produce(client, {"t": {0: gap, 1: plain_batch(1)}})
    assert answers is not None
    assert [answers["t", index].error for index in range(2)] == ["out_of_order_sequence_number", "none"]
    assert await metastore.topics.delete_topics(await metastore.cluster.metadata_head(), [TOPIC_ID])
    answers = await world.produce(world.connect(), {"t": {0: plain_batch(1)}})
    assert answers is not None
    assert answers["t", 0].error == "unknown_topic_or_partition"
    await world.pipeline.close()
