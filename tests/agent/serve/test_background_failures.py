"""Three agents with a bug in a step of their background work: clients are served, and the rest of the work
continues.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.controller.rounds import TopicsWhere
from headrace.agent.serve.broker import Broker
from headrace.cli.process.open_process import compose_agent
from headrace.cli.process.shell import ProcessShell
from headrace.config.settings import Settings
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.supervision import Supervisor
from load.contexts import a_context
from tests.kafka_clients import KafkaClients

AGENTS = 3
RECORDS = 30
TOPIC = "served"
STEP = "partition removal"
PATIENCE_SECONDS = 180.0

Agent = tuple[ProcessShell, Broker, CollectorRegistry]


@asynccontextmanager
async def agents(url: str) -> AsyncIterator[list[Agent]]:
    clock, bucket = SystemClock(), MemoryStore(SystemClock())
    async with AsyncExitStack() as stack:
        started: list[Agent] = []
        for number in range(AGENTS):
            settings = Settings(
                listeners="PLAINTEXT://127.0.0.1:0", http_port=0, metastore_url=url, metastore_pool_size=3, linger_ms=5
            )
            metastore = await PostgresMetastore.open(url, settings)
            registry = CollectorRegistry()
            supervisor = Supervisor(clock, registry)
            context = a_context(
                metastore,
                clock,
                store=bucket,
                settings=settings,
                rng=random.Random(number),
                registry=registry,
                supervisor=supervisor,
            )
            process, broker = compose_agent(context)
            stack.push_async_callback(process.stop)
            await process.start()
            started.append((process, broker, registry))
        yield started


def produce(bootstrap: str, first: int) -> None:
    KafkaClients(bootstrap, {"linger.ms": 0}).produce(TOPIC, range(first, first + RECORDS))


def fetch(bootstrap: str, count: int) -> list[int]:
    return [int(message.value() or b"") for message in KafkaClients(bootstrap).read(TOPIC, count)]


def failures_of(found: list[Agent]) -> list[float]:
    """Return the failures on all agents: how often the step failed."""
    name, work = "headrace_background_failures_total", {"work": STEP}
    return [registry.get_sample_value(name, work) or 0.0 for _, _, registry in found]


async def failing(found: list[Agent]) -> None:
    """Return once the step has failed again and again."""
    for _ in range(3_600):
        if max(failures_of(found)) >= 2:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the step is not tried again")


@pytest.mark.requirement("X1")
async def test_produce_and_fetch_go_on_while_a_step_always_fails_everywhere(
    metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: TopicsWhere, image: MetadataImage) -> list[uuid.UUID]:
        raise KeyError("a bug")

    monkeypatch.setattr(TopicsWhere, "__call__", broken)
    metastore = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=1))
    metastore.life.name_life(0)
    await metastore.topics.create_topics(
        await metastore.cluster.metadata_head(), [NewTopic(TOPIC, uuid.uuid4(), 1, {})]
    )
    await metastore.close()
    async with agents(metastore_url) as found, asyncio.timeout(PATIENCE_SECONDS):
        await failing(found)
        for number, (_, broker, _) in enumerate(found):
            bootstrap = f"127.0.0.1:{broker.kafka_port}"
            await asyncio.to_thread(produce, bootstrap, number * RECORDS)
            expected = list(range((number + 1) * RECORDS))
            assert await asyncio.to_thread(fetch, bootstrap, len(expected)) == expected
        details = [part for process, _, _ in found for part in process.parts() if part.name == "background work"]
        assert all(part.ok for part in details), "clients are served"
        assert sum(STEP in part.detail for part in details) == 1, "on the active controller"
        assert sum(broker._foundation.is_active_controller() for _, broker, _ in found) == 1
