"""The address of an agent is enough where bucket and metastore are local, as with `headrace dev`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.scan.cluster import cluster_settings
from headrace.scan.errors import OptionError
from tests.agent_process import AgentUnderTest
from tests.spark.world import ScanWorld


@pytest.mark.slow
@pytest.mark.requirement("X6.1")
async def test_an_agents_address_is_enough(world: ScanWorld) -> None:
    pytest.importorskip("pyspark", reason="pyspark is needed: make setup")
    from pyspark.sql.types import LongType, StructType

    from headrace.spark import HeadraceDataSource

    (key,) = await world.topic("orders", 1)
    await world.write(key, 1)

    def read() -> list[Any]:
        private = {"azure.endpoint": "https://azure.example", "gcs.endpoint": "https://google.example"}
        with AgentUnderTest(world.options | private) as agent:
            servers = {"Kafka.Bootstrap.Servers": f"127.0.0.1:1,{agent.kafka}"}
            found = cluster_settings(servers, {"AWS_REGION": "x"})
            assert (found.metastore_url, found.bucket) == (world.url, world.bucket.as_uri())
            assert {"azure.endpoint": found.azure_endpoint, "gcs.endpoint": found.gcs_endpoint} == private
            mine = cluster_settings(servers | {"bucket": "s3://mine", "s3.region": "there"}, {})
            assert (mine.bucket, mine.s3_region, mine.metastore_url) == ("s3://mine", "there", world.url)
            reader = HeadraceDataSource(servers | {"subscribe": "orders"}).reader(
                StructType().add("offset", LongType())
            )
            return [row for split in reader.partitions() for batch in reader.read(split) for row in batch.to_pylist()]

    assert await asyncio.to_thread(read) == [{"offset": 0}, {"offset": 1}, {"offset": 2}]


async def test_a_metastore_that_is_not_local_has_to_be_named(world: ScanWorld) -> None:
    url = world.url.replace("headrace@", "headrace:any@")
    assert url != world.url

    def find() -> None:
        with AgentUnderTest(world.options | {"metastore.url": url}) as agent:
            cluster_settings({"kafka.bootstrap.servers": agent.kafka}, {})

    with pytest.raises(
        OptionError, match=r"metastore.url is not set: agents show it only if .* HEADRACE_METASTORE_URL"
    ):
        await asyncio.to_thread(find)


def test_no_agent_answers() -> None:
    with pytest.raises(OptionError, match=r"no agent answers: kafka.bootstrap.servers=127.0.0.1:1"):
        cluster_settings({"kafka.bootstrap.servers": "127.0.0.1:1"}, {})


def test_nothing_is_asked_if_all_is_given() -> None:
    environ = {"HEADRACE_METASTORE_URL": "postgresql://env", "HEADRACE_BUCKET": "s3://env", "HEADRACE_S3_REGION": "r"}
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "s3.endpoint": "http://s3", "s3.path.style": "true"}
    assert cluster_settings(given, environ).metastore_url == "postgresql://env"
