"""Iceberg's own way from a topic to a table: Spark's Kafka source through an agent, writeStream to Iceberg, once.

Place: a child process of load/benchmarks/table_ways.py, in the environment with PySpark 4.1; it imports nothing of
    Headrace. python -m load.workloads.kafka_to_iceberg BOOTSTRAP TOPIC WAREHOUSE JARS SECONDS_PER_BATCH
With 0 seconds it appends what the topic has and prints `seconds SECONDS ROWS`; else it goes on until it is ended.
"""

from __future__ import annotations

import sys
import time

from load.workloads.spark_session import TYPED_COLUMNS, iceberg_settings, local_session, read_kafka


def main(bootstrap: str, topic: str, warehouse: str, jars: str, batch_seconds: str) -> None:
    """Append to the table own.db.TOPIC."""
    began = time.monotonic()
    spark = local_session("kafka-to-iceberg", settings=iceberg_settings(warehouse, jars))
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS own.db.{topic} ({TYPED_COLUMNS})"
        " TBLPROPERTIES ('write.parquet.compression-codec' = 'zstd')"
    )
    rows = read_kafka(spark.readStream, bootstrap, topic, "earliest")
    stream = rows.writeStream.format("iceberg").option("checkpointLocation", f"{warehouse}/checkpoint-{topic}")
    seconds = float(batch_seconds)
    timed = stream.trigger(processingTime=f"{seconds} seconds") if seconds else stream.trigger(availableNow=True)
    timed.toTable(f"own.db.{topic}").awaitTermination()
    took = time.monotonic() - began
    print(f"seconds {took:.3f} {spark.table(f'own.db.{topic}').count()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
