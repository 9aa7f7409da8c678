"""Iceberg's own way from a topic to a table: Spark's Kafka source through an agent, writeStream to Iceberg, once.

Place: a child process of load/bench_table_ways.py, in the environment with PySpark 4.1; it imports nothing of Headrace.
    python kafka_to_iceberg.py BOOTSTRAP TOPIC WAREHOUSE JARS SECONDS_PER_BATCH
With 0 seconds it appends what the topic has and prints `seconds SECONDS ROWS`; else it goes on until it is ended.
"""

from __future__ import annotations

import sys
import time

from pyspark.sql import SparkSession


def main(bootstrap: str, topic: str, warehouse: str, jars: str, batch_seconds: str) -> None:
    """Append to the table own.db.TOPIC."""
    began = time.monotonic()
    builder = SparkSession.builder.master("local[2]").appName("kafka-to-iceberg")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.jars": jars,
        "spark.sql.catalog.own": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.own.type": "hadoop",
        "spark.sql.catalog.own.warehouse": warehouse,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS own.db.{topic} (key binary, value binary, headers array<struct<key: string,"
        " value: binary>>, timestamp timestamp, partition int, offset bigint)"
        " TBLPROPERTIES ('write.parquet.compression-codec' = 'zstd')"
    )
    source = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"},
        includeHeaders="true",
    )
    rows = source.load().select("key", "value", "headers", "timestamp", "partition", "offset")
    stream = rows.writeStream.format("iceberg").option("checkpointLocation", f"{warehouse}/checkpoint-{topic}")
    seconds = float(batch_seconds)
    timed = stream.trigger(processingTime=f"{seconds} seconds") if seconds else stream.trigger(availableNow=True)
    timed.toTable(f"own.db.{topic}").awaitTermination()
    took = time.monotonic() - began
    print(f"seconds {took:.3f} {spark.table(f'own.db.{topic}').count()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
