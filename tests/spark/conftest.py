"""One local Spark for all tests of this folder; a cluster on a real Postgres, and its tables, per test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures_clouds import azurite_url, cloud_keys, fake_gcs_url
from tests.fixtures_s3 import aws_credentials, real_s3_url
from tests.house.needs import require
from tests.java_program import FLAGS
from tests.scan.conftest import thrown_away, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.world import ScanWorld
    from tests.tables.world import Tables

__all__ = ["aws_credentials", "azurite_url", "cloud_keys", "fake_gcs_url", "real_s3_url", "thrown_away", "world"]


@pytest.fixture(scope="package")
def spark(aws_credentials: None, cloud_keys: None) -> Iterator[SparkSession]:
    """Two tasks at a time, each tried twice. Its workers inherit this process's environment, with the buckets' keys."""
    pytest.importorskip("pyspark", reason="pyspark is needed: make setup")
    require("java")
    from pyspark.sql import SparkSession

    from headrace.spark import HeadraceDataSource

    _end_old_jvm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master("local[2,2]").appName("headrace-source-tests")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": " ".join(FLAGS),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
        }.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(HeadraceDataSource)
        yield spark
        spark.stop()


def _end_old_jvm() -> None:
    """One of other tests was started with another environment, which Spark's Python workers inherit."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None and SparkContext._active_spark_context is None:
        gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def tables(world: ScanWorld, tmp_path: Path) -> Tables:
    from tests.tables.world import Tables

    return Tables(world, tmp_path / "iceberg")
