"""A local session of Spark with two tasks at a time, and what Iceberg's own way reads of a topic.

Place: under the programs of load/ that start Spark. It imports nothing of Headrace: Iceberg's own way runs in the
environment with PySpark 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
}
COLUMNS = ("key", "value", "headers", "timestamp", "partition", "offset")
TYPED_COLUMNS = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp, partition int,"
    " offset bigint"
)
"""The same for CREATE TABLE."""


def local_session(name: str, *, memory: str = "2g", settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark. `memory`: the heap of its JVM, which is driver and executor."""
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in {**LOCAL, "spark.driver.memory": memory, **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def iceberg_settings(warehouse: str, jars: str) -> dict[str, str]:
    """Return the settings of `own`, a catalog of Iceberg in a directory. `jars`: of Iceberg and of the Kafka source."""
    catalog = "spark.sql.catalog.own"
    return {
        "spark.jars": jars,
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": warehouse,
    }


def read_kafka(reader: DataFrameReader | DataStreamReader, bootstrap: str, topic: str, starting: str) -> DataFrame:
    """Return the records of a topic from `starting` on, in COLUMNS, by Spark's Kafka source."""
    source = reader.format("kafka").options(
        **{"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": starting}, includeHeaders="true"
    )
    return source.load().select(*COLUMNS)
