"""Each critical alert fires when its condition is made: real agents, a real Postgres and S3, Prometheus' own engine.

Invariant: every critical alert of the rules has a test here. By day one of them shows that rules and agents agree; all
expressions are judged there by tests/deploy/test_rules.py.
"""

from __future__ import annotations

import asyncio
import random
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client import generate_latest

from headrace.metastore.life.own_bucket import SAMPLE
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.agent.fetch.zone_cache.test_zone_cache import _bent, _foreign_file
from tests.agent.fetch.zone_cache.zone_world import Zone, recent
from tests.agent_process import SECONDS_MAX, AgentUnderTest, format_storage
from tests.deploy.fired_alerts import Page, assert_fires
from tests.deploy.live_scrape import Scrape
from tests.deploy.test_rules import ALERTS
from tests.fixtures_s3 import BUCKET
from tests.kafka_clients import KafkaClients
from tests.torture.proxy import FaultProxy

TOPIC, FILES = "orders", 12
CHECKS = 4
"""Checks of the life after which a process has noted how far the server got."""
ELSEWHERE = {"HeadraceRecordsDamaged"}
"""Its gauge counts rows that damage in the bucket leaves: tests/metastore/test_upkeep_watch.py."""
CRITICAL = {str(rule["alert"]) for rule in ALERTS if rule["labels"]["severity"] == "critical"}
TESTED = {
    "HeadraceStoredBytesUnreadable", "HeadraceCompactionReadsDamage", "HeadraceZoneBytesWrong",
    "HeadraceAgentWritesNothing", "HeadraceNoAgents", "HeadraceBucketFails", "HeadraceMetastoreFails",
    "HeadraceNoActiveController", "HeadraceNoCompactor",
}  # fmt: skip

pytestmark = pytest.mark.needs("promtool")


@dataclass
class World:
    """Agents behind proxies to Postgres and to the bucket; `calm` is the page of a healthy one."""

    settings: dict[str, object]
    postgres: FaultProxy
    bucket: FaultProxy
    agents: list[AgentUnderTest] = field(default_factory=list)

    async def start(self, roles: str, **more: object) -> AgentUnderTest:
        agent = AgentUnderTest({**self.settings, "process.roles": roles, **more})
        await asyncio.to_thread(agent.__enter__)
        self.agents.append(agent)
        return agent

    async def stop(self, agent: AgentUnderTest) -> None:
        self.agents.remove(agent)
        await asyncio.to_thread(agent.__exit__, None, None, None)


@pytest.fixture
async def world(metastore_url: str, postgres_server: EmbeddedPostgres, real_s3_url: str) -> AsyncIterator[World]:
    database = urlsplit(metastore_url).path.lstrip("/")
    ports = urlsplit(postgres_server.tcp_url(database)).port, urlsplit(real_s3_url).port
    postgres, bucket = (FaultProxy(random.Random(number)) for number in range(2))
    for proxy, port in zip((postgres, bucket), ports, strict=True):
        assert port is not None
        await proxy.start()
        proxy.target = port
    settings: dict[str, object] = {
        "metastore.url": metastore_url, "bucket": f"s3://{BUCKET}/{uuid.uuid4()}", "s3.endpoint": real_s3_url,
        "s3.region": "us-east-1", "s3.path.style": True, "log.level": "error", "linger.ms": 5,
        "broker.session.timeout.ms": 6_000, "broker.heartbeat.interval.ms": 500,
        "compaction.interval.ms": 200, "compaction.min.age.ms": 0, "compaction.max.age.ms": 200,
    }  # fmt: skip
    await asyncio.to_thread(format_storage, settings)
    settings["metastore.url"] = postgres_server.tcp_url(database, port=postgres.port)
    settings["s3.endpoint"] = f"http://127.0.0.1:{bucket.port}"
    world = World(settings, postgres, bucket)
    yield world
    for proxy, port in zip((postgres, bucket), ports, strict=True):
        proxy.target, proxy.fault = port or 0, ""
    for agent in list(world.agents):
        await world.stop(agent)
    for proxy in (postgres, bucket):
        await proxy.close()


def _page(agent: AgentUnderTest) -> str:
    with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=SECONDS_MAX) as response:
        return str(response.read().decode())


async def _page_with(agent: AgentUnderTest, is_wanted: Callable[[Scrape], bool]) -> str:
    """The first page that shows it."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        text = await asyncio.to_thread(_page, agent)
        if is_wanted(Scrape(text)):
            return text
        assert time.monotonic() < until, text
        await asyncio.sleep(0.1)


def _failing(dependency: str) -> Callable[[Scrape], bool]:
    return lambda page: page.value("headrace_dependency_failing", dependency=dependency) == 1


def _is_healthy(page: Scrape) -> bool:
    return (
        page.value("headrace_broker_state") == 3
        and (page.value("headrace_active_controller_id") or -1) > 0
        and (page.value("headrace_running_processes", role="compactor") or 0) > 0
    )


def _produce(address: str) -> None:
    clients = KafkaClients(address)
    clients.create(TOPIC)
    clients.produce(TOPIC, [b"x" * 1000] * FILES, one_by_one=True)


async def _remove_segments(world: World) -> int:
    """Another program deletes the objects of the first segment files. A process does not start without the newest."""
    prefix = f"{str(world.settings['bucket']).rpartition('/')[2]}/segments/"
    client = boto3.client("s3", endpoint_url=str(world.settings["s3.endpoint"]), region_name="us-east-1")
    listed = await asyncio.to_thread(lambda: client.list_objects_v2(Bucket=BUCKET, Prefix=prefix))
    in_time = sorted((found["Key"] for found in listed.get("Contents", ())), key=lambda key: key.rpartition("/")[2])
    for key in in_time[:-SAMPLE]:
        await asyncio.to_thread(client.delete_object, Bucket=BUCKET, Key=key)
    return len(in_time[:-SAMPLE])


def test_every_critical_alert_is_tested() -> None:
    assert TESTED | ELSEWHERE == CRITICAL


@pytest.mark.slow
async def test_roles_and_agents_that_are_gone(world: World, tmp_path: Path) -> None:
    """One agent without the other roles; then one with all of them, until it ends."""
    agent = await world.start("broker")

    def lacks_roles(page: Scrape) -> bool:
        return (
            page.value("headrace_active_controller_id") == -1
            and page.value("headrace_running_processes", role="compactor") == 0
        )

    poor = await _page_with(agent, lacks_roles)
    await world.stop(agent)
    agent = await world.start("broker,controller,compactor")
    calm = await _page_with(agent, _is_healthy)
    for alert in ("HeadraceNoActiveController", "HeadraceNoCompactor"):
        assert_fires(alert, [calm], [poor], tmp_path / alert)
    await world.stop(agent)
    assert_fires("HeadraceNoAgents", [calm], [None], tmp_path / "agents")


async def test_dependencies_that_fail(world: World, tmp_path: Path) -> None:
    """An agent loses the bucket's PUTs, and Postgres."""
    agent = await world.start("broker,controller,compactor")
    calm = await _page_with(agent, _is_healthy)
    world.bucket.fault = "deny_puts"
    await asyncio.to_thread(_produce_in_vain, agent.kafka)
    denied = await _page_with(agent, _failing("bucket"))
    assert_fires("HeadraceBucketFails", [calm], [denied], tmp_path / "bucket")
    world.bucket.fault = ""
    await _page_with(agent, lambda page: page.value("headrace_dependency_failing", dependency="bucket") == 0)

    port, world.postgres.target = world.postgres.target, 0
    world.postgres.reset()
    away = await _page_with(agent, _failing("metastore"))
    assert_fires("HeadraceMetastoreFails", [calm], [away], tmp_path / "metastore")
    world.postgres.target = port
    await _page_with(agent, _is_healthy)


def _produce_in_vain(address: str) -> None:
    """Clients keep on sending: each PUT is refused."""
    KafkaClients(address).create(TOPIC)
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 3_000, "retry.backoff.ms": 100})
    producer.produce(TOPIC, b"x")
    producer.flush(SECONDS_MAX)


@pytest.mark.slow
async def test_objects_that_another_program_deleted(world: World, tmp_path: Path) -> None:
    writer = await world.start("broker")
    await asyncio.to_thread(_produce, writer.kafka)
    await world.stop(writer)
    assert await _remove_segments(world) > 0
    reader = await world.start("broker,controller")
    calm = await asyncio.to_thread(_page, reader)
    consumer = Consumer({"bootstrap.servers": reader.kafka, "group.id": "unused"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def unreadable(page: Scrape) -> bool:
        consumer.poll(0)
        return (page.value("headrace_fetch_storage_errors_total", reason="missing") or 0) > 0

    missing = await _page_with(reader, unreadable)
    consumer.close()
    assert_fires("HeadraceStoredBytesUnreadable", [calm], [missing], tmp_path / "fetch")
    await world.stop(reader)
    worker = await world.start("broker,controller,compactor")
    damaged = await _page_with(
        worker, lambda page: (page.value("headrace_compaction_unreadable_extents_total") or 0) > 0
    )
    counter = "headrace_compaction_unreadable_extents_total"
    before = "\n".join(f"{counter} 0.0" if line.startswith(f"{counter} ") else line for line in damaged.split("\n"))
    assert_fires("HeadraceCompactionReadsDamage", [before], [damaged], tmp_path / "compaction")


@pytest.mark.slow
async def test_a_metastore_that_went_back(
    world: World, postgres_server: EmbeddedPostgres, metastore_url: str, tmp_path: Path
) -> None:
    """The database is replaced by a copy of an earlier time, under an agent that runs."""
    name = urlsplit(metastore_url).path.lstrip("/")
    earlier, lost = f"{name}_earlier", f"{name}_lost"
    with psycopg.connect(postgres_server.url(), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {earlier} TEMPLATE {name}")
        agent = await world.start("broker,controller")
        await asyncio.to_thread(_produce, agent.kafka)
        calls = "headrace_metastore_call_seconds_count"
        first = Scrape(await asyncio.to_thread(_page, agent)).value(calls, operation="describe_life") or 0
        calm = await _page_with(
            agent, lambda page: (page.value(calls, operation="describe_life") or 0) >= first + CHECKS
        )
        port, world.postgres.target = world.postgres.target, 0
        world.postgres.reset()
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        server.execute(f"ALTER DATABASE {name} RENAME TO {lost}")
        server.execute(f"ALTER DATABASE {earlier} RENAME TO {name}")
        world.postgres.target = port
        back = await _page_with(agent, lambda page: page.value("headrace_metastore_life_is_current") == 0)
        await world.stop(agent)
        server.execute(f"DROP DATABASE {lost} WITH (FORCE)")
    assert_fires("HeadraceAgentWritesNothing", [calm], [back], tmp_path / "life")


async def test_bytes_that_were_altered_between_agents(tmp_path: Path) -> None:
    def page(zone: Zone) -> Page:
        return generate_latest(zone.members[1].registry).decode()

    zone = Zone(["a", "a"])
    calm = page(zone)
    zone.members[2].bend = lambda frame: _bent(len(frame) - 1)(frame)
    file_id, _ = await _foreign_file(zone, asker=1, owner=2)
    await zone.read(1, recent(file_id, 16, 816))
    assert_fires("HeadraceZoneBytesWrong", [calm], [page(zone)], tmp_path / "zone")
