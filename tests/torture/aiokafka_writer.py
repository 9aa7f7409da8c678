"""aiokafka's idempotent producer as a writer of the torture run (tests/torture/pacing.py says what that is).

After OUT_OF_ORDER_SEQUENCE_NUMBER, which it gets when Postgres lost acknowledged batches, it fails each later batch
too: a new producer continues, as in an application, once the old one has an answer for everything.
"""

from __future__ import annotations

import asyncio
import logging

import aiokafka

from tests.torture.pacing import TICK_S, Arguments, Pacer


class Retries(logging.Handler):
    """aiokafka has no counter; it logs each produce request that failed before it sends the batches again."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Called by aiokafka's sender."""
        self.total += "produce" in record.getMessage().lower()


async def run(arguments: Arguments) -> None:
    """Write until told to stop."""
    pacer, retries = Pacer("aiokafka", arguments), Retries()
    logging.getLogger("aiokafka").setLevel(logging.WARNING)
    logging.getLogger("aiokafka").propagate = False
    logging.getLogger("aiokafka.producer.sender").addHandler(retries)
    while not pacer.is_stopped:
        await _produce(arguments, pacer)
    pacer.end(retries.total)


async def _produce(arguments: Arguments, pacer: Pacer) -> None:
    """Produce with one producer, until told to stop, or until it cannot continue; everything sent has an answer
    then.
    """
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=arguments.bootstrap,
        enable_idempotence=True,
        linger_ms=5,
        request_timeout_ms=2_000,
        retry_backoff_ms=100,
        metadata_max_age_ms=1_000,
    )
    waiting: set[asyncio.Task[None]] = set()
    is_broken = asyncio.Event()
    async with producer:
        while not (pacer.is_stopped or is_broken.is_set()):
            for partition, number, value in pacer.next_burst():
                try:
                    future = await _buffered(producer, arguments.topic, value, partition)
                except aiokafka.errors.KafkaError as error:
                    pacer.failed(partition, number, repr(error))
                    continue
                task = asyncio.create_task(_settle(pacer, partition, number, future, is_broken))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*waiting)


async def _buffered(
    producer: aiokafka.AIOKafkaProducer, topic: str, value: bytes, partition: int
) -> asyncio.Future[aiokafka.structs.RecordMetadata]:
    """Take the record, however long the buffer is full: nothing was sent of one that did not fit in time."""
    while True:
        try:
            future: asyncio.Future[aiokafka.structs.RecordMetadata]
            future = await producer.send(topic, value, partition=partition)
            return future
        except aiokafka.errors.KafkaTimeoutError:
            continue


async def _settle(
    pacer: Pacer,
    partition: int,
    number: int,
    future: asyncio.Future[aiokafka.structs.RecordMetadata],
    is_broken: asyncio.Event,
) -> None:
    try:
        pacer.acknowledged(partition, number, (await future).offset)
    except aiokafka.errors.KafkaError as error:
        pacer.failed(partition, number, repr(error))
        if isinstance(error, aiokafka.errors.OutOfOrderSequenceNumber):
            is_broken.set()


if __name__ == "__main__":
    asyncio.run(run(Arguments.read()))
