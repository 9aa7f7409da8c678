"""Batches carry the partition count that their client knew: to the commit, and never merged with another one's."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace

import pytest

from headrace.agent.produce.requests import Arrival, PendingRequest
from headrace.agent.produce.upload import lay_out
from headrace.protocol.errors import INVALID_PARTITION_METADATA
from headrace.protocol.partition_counts import NO_COUNT, count_tags
from headrace.protocol.produce_codec import ProducePartitionReply, ProduceRequest
from headrace.storage.records.header import read_header
from tests.agent.produce.produce_world import ProduceWorld
from tests.storage.batches import forge, plain_batch


def _arrival(count: int) -> Arrival:
    request = PendingRequest(
        ProduceRequest(None, -1, 0, []), correlation_id=0, version=9, appended_at=0.0, deadline=0.0
    )
    data = memoryview(plain_batch(1))
    return Arrival(uuid.UUID(int=1), 0, 1, 0, -2, data, read_header(data), request, ProducePartitionReply(0), count)


@pytest.mark.requirement("P4")
async def test_batches_with_different_counts_are_never_merged() -> None:
    arrivals = [_arrival(count) for count in [NO_COUNT] * 4 + [8] * 5 + [13] * 4 + [8]]
    _, placed = lay_out({(uuid.UUID(int=1), 0): arrivals}, 65_536)
    assert [(each.batch.partition_count, each.batch.record_count) for each in placed] == [
        *[(NO_COUNT, 4)] * 4,
        *[(8, 5)] * 5,
        *[(13, 4)] * 4,
        (8, 1),
    ]


@pytest.mark.requirement("P4")
async def test_a_wrong_count_is_refused_and_a_retry_of_a_stored_batch_is_not(world: ProduceWorld) -> None:
    world.create_topic("t", 3)
    batch = forge(plain_batch(1), producer_id=5, producer_epoch=0, base_sequence=0)
    assert await _produce(world, batch, count=2) == (INVALID_PARTITION_METADATA, -1)
    assert await _produce(world, batch, count=3) == (0, 0)
    assert await _produce(world, batch, count=2) == (0, 0)  # a duplicate, with any count
    assert await _produce(world, batch, count=NO_COUNT) == (0, 0)


async def test_only_a_batch_without_a_count_goes_through_an_alias(world: ProduceWorld) -> None:
    """A client that sends counts places its records again when the commit has sent them back."""
    topic = world.create_topic("t", 2)
    world.put_topic(replace(topic, aliases={0: 1}))
    world.view.image = world.view.head
    batch = plain_batch(1)
    for count, ends in ((2, (1, 0)), (NO_COUNT, (1, 1))):
        assert (await _produce(world, batch, count))[0] == 0
        found = (world.model.partitions[topic.key(index) or 0].high_watermark for index in range(2))
        assert tuple(found) == ends


async def _produce(world: ProduceWorld, batch: bytes, count: int) -> tuple[int, int]:
    """(error code, base offset)."""
    partition = struct.pack(">i", 0) + (len(batch) + 1).to_bytes(1, "big") + batch + b"\0"
    assert len(batch) < 127
    body = b"\0" + struct.pack(">hi", -1, 1000) + b"\x02\x02t\x02" + partition + count_tags(count) + b"\0"
    response = await world.clock.run(world.pipeline.handle(world.request(world.connect(), body)))
    assert response.buffers is not None
    frame = b"".join(response.buffers)
    code, offset = struct.unpack_from(">hq", frame, 5 + 1 + 2 + 1 + 4)
    return code, offset
