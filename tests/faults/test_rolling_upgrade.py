"""A rolling upgrade from the previous release, and back, under the load of two client libraries.

Fault model: none but the upgrade: its agents run against the new schema, next to an agent of this release, and are
drained one after another; in another test, one comes back. Nothing is lost, doubled or reordered, and
no client sees an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.cli.children import load_code
from headrace.config.settings import Settings
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.log.features import change_feature
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from load.postgres_servers import ask
from tests import previous_release
from tests.agent_process import LOADED_BY_TESTS, AgentUnderTest, until_told
from tests.faults.conftest import EAGER_COMPACTION
from tests.faults.steady_load import PARTITIONS, Load
from tests.kafka_clients import KafkaClients

TOPIC = "upgraded"
RECORDS = 40
"""Records of each producer, between two steps."""


@pytest.fixture(scope="module")
def previous() -> Path:
    return previous_release.unpacked()


@pytest.fixture
def old_cluster(previous: Path, postgres_server: EmbeddedPostgres, tmp_path: Path) -> Iterator[dict[str, object]]:
    """Settings of a cluster that the previous release formatted."""
    name = f"upgrade_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as raw:
        raw.execute(f"CREATE DATABASE {name}".encode())
        settings: dict[str, object] = {"metastore.url": postgres_server.url(name), "bucket": tmp_path.as_uri()}
        flags = [f"--{key.replace('.', '-')}={value}" for key, value in settings.items()]
        done = previous_release.command(previous, "storage", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", *flags)
        assert done.returncode == 0, done.stderr
        yield (
            settings
            | EAGER_COMPACTION
            | {
                "broker.session.timeout.ms": 6_000,
                "broker.heartbeat.interval.ms": 500,
                "linger.ms": 25,
                "log.level": "warning",
            }
        )
        raw.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def _format_of(url: str, level: int | None = None) -> int:
    """The cluster's metadata.format, after it was raised to `level`."""
    metastore = await PostgresMetastore.open(url, Settings())
    try:
        while level is not None:
            image = await load_image(metastore.cluster)
            record = change_feature(image, METADATA_FORMAT, level, allow_downgrade=False)
            if record is None or await metastore.cluster.append_records(image.offset, [record]):
                break
        return (await load_image(metastore.cluster)).metadata_format
    finally:
        await metastore.close()


@pytest.mark.requirement("X9")
async def test_agents_are_upgraded_one_by_one_without_an_error(previous: Path, old_cluster: dict[str, object]) -> None:
    url, environment = str(old_cluster["metastore.url"]), previous_release.environment(previous)
    with contextlib.ExitStack() as stack:
        starting = [asyncio.to_thread(stack.enter_context, AgentUnderTest(old_cluster, environment)) for _ in range(2)]
        load_code([LOADED_BY_TESTS])  # meanwhile
        old = await asyncio.gather(*starting)
        KafkaClients(old[0].kafka).create(TOPIC, PARTITIONS)
        until_told(old, TOPIC)
        async with Load(",".join(agent.kafka for agent in old), TOPIC) as load:
            await load.until_acknowledged(RECORDS)
            report = await asyncio.to_thread(migrate, url)
            assert report.applied, "nothing to upgrade: the previous release is this one"
            await load.until_acknowledged(RECORDS)  # old agents, new schema
            new = await asyncio.to_thread(stack.enter_context, AgentUnderTest(old_cluster))
            await asyncio.to_thread(until_told, [new, *old], TOPIC)
            learned = await asyncio.to_thread(formatted_cluster, url)
            assert learned is not None
            assert learned.bucket is not None, "the first agent of this release notes the bucket"
            assert ask(url, "SELECT database_oid IS NOT NULL FROM cluster") == (True,)
            for leaving in old:
                await load.until_acknowledged(RECORDS)  # both
                assert await asyncio.to_thread(leaving.stop) == 0
            await load.until_acknowledged(RECORDS)
            assert await _format_of(url) == 2, "an upgrade of agents changes no feature level"
    load.assert_nothing_went_wrong()


@pytest.mark.slow
@pytest.mark.requirement("X9")
async def test_an_agent_of_the_previous_release_comes_back_without_an_error(
    previous: Path, old_cluster: dict[str, object]
) -> None:
    """After the upgrade, before a feature level is raised."""
    await asyncio.to_thread(migrate, str(old_cluster["metastore.url"]))
    environment = previous_release.environment(previous)
    with contextlib.ExitStack() as stack:
        new = stack.enter_context(AgentUnderTest(old_cluster))
        KafkaClients(new.kafka).create(TOPIC, PARTITIONS)
        until_told([new], TOPIC)
        async with Load(new.kafka, TOPIC) as load:
            await load.until_acknowledged(RECORDS)
            back = await asyncio.to_thread(stack.enter_context, AgentUnderTest(old_cluster, environment))
            await asyncio.to_thread(until_told, [new, back], TOPIC)
            await load.until_acknowledged(RECORDS)  # one release back
            assert await asyncio.to_thread(back.stop) == 0
            await load.until_acknowledged(RECORDS)
    load.assert_nothing_went_wrong()


@pytest.mark.slow
@pytest.mark.requirement("X9")
async def test_the_previous_release_is_refused_with_a_reason_once_the_level_is_raised(
    previous: Path, old_cluster: dict[str, object]
) -> None:
    url = str(old_cluster["metastore.url"])
    await asyncio.to_thread(migrate, url)
    assert await _format_of(url, 3) == 3
    flags = [f"--metastore-url={url}", f"--bucket={old_cluster['bucket']}"]
    ports = ["--kafka-port", "0", "--http-port", "0"]
    ended = await asyncio.to_thread(previous_release.command, previous, "agent", *ports, *flags)
    assert ended.returncode == 1
    assert "metadata.format" in ended.stderr
    older = await asyncio.to_thread(previous_release.command, previous, "migrate", f"--metastore-url={url}")
    assert older.returncode == 1
    assert "database is newer than this version" in older.stderr
