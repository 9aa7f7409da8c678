"""Iceberg's own way from a topic to a table with a row per key: Spark's Kafka source through an agent, MERGE INTO.

Place: a child process of load/benchmarks/keyed_tables.py, with PySpark 4.1; it imports nothing of Headrace.
    python -m load.workloads.kafka_merge BOOTSTRAP TOPIC WAREHOUSE JARS
The table own.db.TOPIC has a bucket of the key as Headrace's has, and is copy-on-write. Where it ends is in a file next
to the warehouse: this program does not promise that each record is merged once. Prints `seconds SECONDS rows ROWS`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from load.workloads.spark_session import TYPED_COLUMNS, iceberg_settings, local_session, read_kafka


def main(bootstrap: str, topic: str, warehouse: str, jars: str) -> None:
    """Merge what is new."""
    began = time.monotonic()
    settings = {
        "spark.sql.shuffle.partitions": "16",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    spark = local_session("kafka-merge", settings=settings | iceberg_settings(warehouse, jars))
    table, ends = f"own.db.{topic}", Path(urlsplit(warehouse).path + ".ends")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table} ({TYPED_COLUMNS}) PARTITIONED BY (bucket(16, key))"
        " TBLPROPERTIES ('format-version' = '2', 'write.parquet.compression-codec' = 'zstd',"
        " 'write.merge.mode' = 'copy-on-write')"
    )
    starting = ends.read_text() if ends.exists() else "earliest"
    records = read_kafka(spark.read, bootstrap, topic, starting)
    records.createOrReplaceTempView("records")
    spark.sql(
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY partition, offset DESC) AS age"
        " FROM records) WHERE age = 1"
    ).drop("age").createOrReplaceTempView("newest")
    spark.sql(
        f"MERGE INTO {table} t USING newest n ON t.key = n.key"
        " WHEN MATCHED AND n.value IS NULL THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET *"
        " WHEN NOT MATCHED AND n.value IS NOT NULL THEN INSERT *"
    )
    took = time.monotonic() - began
    have = json.loads(starting)[topic] if ends.exists() else {}
    found = records.groupBy("partition").max("offset").collect()
    ends.write_text(json.dumps({topic: have | {str(partition): last + 1 for partition, last in found}}))
    print(f"seconds {took:.3f} rows {spark.table(table).count()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
