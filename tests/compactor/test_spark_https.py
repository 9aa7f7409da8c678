"""Spark's driver and executors on a bucket behind https, addressed as by default: in virtual-host style."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from tests import loopback_names
from tests.fixtures_s3 import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    HttpsServer,
    aws_credentials,
    https_s3,
    https_server,
)

pytest.importorskip("pyspark", reason="pyspark is needed: make setup")
pytestmark = [
    pytest.mark.needs("java"),
]

from tests.compactor.test_spark import SPARK_SECONDS, SparkWorld, done, spark_submit  # noqa: E402

__all__ = ["aws_credentials", "https_s3", "https_server"]


class HttpsWorld(SparkWorld):
    """Its files are in a bucket of versitygw."""

    def __init__(self, metastore: PostgresMetastore, url: str, bucket: Path, server: HttpsServer) -> None:
        super().__init__(metastore, url, bucket)
        self._server, self._prefix = server, str(uuid.uuid4())
        options = S3Options(bucket=BUCKET, prefix=self._prefix, endpoint=server.url, region=REGION)
        self.store = S3Store(options, SystemClock())  # type: ignore[assignment]
        self.service = self.new_service()

    @property
    def environment(self) -> dict[str, str]:
        names = str(Path(loopback_names.__file__).parent)
        return super().environment | {
            "HEADRACE_BUCKET": f"s3://{BUCKET}/{self._prefix}",
            "HEADRACE_S3_ENDPOINT": self._server.url,
            "HEADRACE_S3_REGION": REGION,
            "AWS_CA_BUNDLE": str(self._server.certificate),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "PYTHONPATH": os.pathsep.join((names, os.environ.get("PYTHONPATH", ""))),
        }


@pytest.mark.slow
async def test_executors_merge_files_of_a_bucket_that_is_part_of_the_host_name(
    metastore: PostgresMetastore, metastore_url: str, tmp_path: Path, https_s3: HttpsServer
) -> None:
    world = HttpsWorld(metastore, metastore_url, tmp_path, https_s3)
    await world.begin()
    await write_cluster_id(world.store, metastore.cluster_id)
    keys = await world.fill("t")
    before = [await world.records(key) for key in keys]
    await world.enqueue(keys)
    driver = spark_submit(world)
    output, _ = await asyncio.to_thread(driver.communicate, timeout=SPARK_SECONDS)
    assert driver.returncode == 0, output.decode()
    assert [await world.records(key) for key in keys] == before
    assert [len(await world.extents(key)) for key in keys] == [1] * len(keys)
    assert await done(world)
    await world.service.close()
    await world.store.close()
