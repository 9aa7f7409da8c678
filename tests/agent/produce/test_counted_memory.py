"""What Produce requests take until they are answered is counted in the memory for them, however they are cut."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc

import pytest

from headrace.agent.produce import pipeline as pipeline_module
from headrace.storage.records.codec import Record, encode_batch
from tests.agent.listener.listener_client import PRODUCE, frame, limits, listening, until
from tests.agent.produce.produce_world import ProduceWorld
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X7")
BATCH = encode_batch([Record(0, 1_700_000_000_000, None, b"")], base_offset=0)
TOPIC, PARTITIONS = "t", 300
CASES = {"one batch each": (300, 1, 0), "a batch for many partitions": (8, 300, 0), "nothing": (3, 1, 2_000)}
"""(requests, batches of each, partitions of each without a batch)."""


def produce(number: int, batches: int, empty: int) -> bytes:
    """A request of version 7 with the smallest batch there is."""
    body = [struct.pack(">hhii", -1, -1, 30_000, 1), struct.pack(">h1si", 1, TOPIC.encode(), batches + empty)]
    body += [struct.pack(">ii", index % PARTITIONS, len(BATCH)) + BATCH for index in range(batches)]
    return frame(number, b"".join(body) + struct.pack(">ii", 0, -1) * empty, PRODUCE, version=7)


async def held_and_counted(case: str, *, is_known: bool = True) -> tuple[int, float]:
    """Return the bytes that Python allocated for requests in progress, and what the metric says of them.

    `is_known`: else they wait for the metadata log, in tasks.
    """
    requests, batches, empty = CASES[case]
    caught_up = asyncio.Event()
    async with ProduceWorld(flush_bytes=1 << 30) as world:
        world.create_topic(TOPIC, PARTITIONS, known=is_known)
        world.view.before_catch_up = caught_up.wait
        allowed = limits(memory=1 << 28, inflight=512)
        async with listening(lambda request: world.pipeline.handle(request), allowed, world.clock) as server:
            client = await server.connect()

            def counted() -> float:
                return server.metric("headrace_kafka_memory_bytes", share="produce")

            def taken() -> float:
                return server.metric("headrace_kafka_requests_total", api="Produce", version="7")

            await client.send(produce(0, batches, empty))  # loads code
            await until(lambda: taken() == 1)
            tracemalloc.start()
            try:
                for number in range(1, requests + 1):
                    await client.send(produce(number, batches, empty))
                    await until(lambda number=number: taken() == number + 1)
                held, found = tracemalloc.get_traced_memory()[0], counted() * requests / (requests + 1)
            finally:
                tracemalloc.stop()
            caught_up.set()
            for _ in range(requests + 1):
                reply = asyncio.ensure_future(client.reply())
                while not reply.done():
                    await world.clock.advance(0.3)
                await reply
            await until(lambda: counted() == 0)
            await client.close()
    return held, found


@pytest.mark.parametrize("case", CASES)
async def test_what_requests_take_is_counted(case: str, patch: Patch) -> None:
    held, counted = await held_and_counted(case)
    assert held <= counted <= 12 * held, f"held={held} counted={counted:.0f}"
    patch.replace(pipeline_module, "PRODUCED_BATCH_BYTES", 0)
    held, counted = await held_and_counted(case)
    assert held > counted, "planted: frames alone are counted"


async def test_what_requests_take_is_counted_while_they_wait_for_the_metadata_log() -> None:
    held, counted = await held_and_counted("one batch each", is_known=False)
    assert held <= counted <= 2 * held, f"held={held} counted={counted:.0f}"
