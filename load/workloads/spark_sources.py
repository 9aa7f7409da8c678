"""A Spark driver that reads one topic with Headrace's source and with Spark's own Kafka source, in turns.

Place: a child process of load/benchmarks/spark_scan.py and of the test of both sources.
    python -m load.workloads.spark_sources '{"metastore.url": ..., "bucket": ...}' BOOTSTRAP TOPIC ROUNDS [JARS]
Prints one line `begin SOURCE` and one `end SOURCE SECONDS ROWS HASH` per scan; HASH is a sum over all rows and columns.
Without JARS only Headrace's source is read.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.column import Column

from headrace.spark import HeadraceDataSource
from load.workloads.spark_session import local_session

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def main(options: str, bootstrap: str, topic: str, rounds: str, jars: str = "") -> None:
    """Scan, check, end."""
    spark = local_session("headrace-two-sources", settings={"spark.jars": jars})
    spark.dataSource.register(HeadraceDataSource)
    frames = {"headrace": spark.read.format("headrace").options(**json.loads(options), subscribe=topic)}
    if jars:
        frames["kafka"] = spark.read.format("kafka").options(**{"kafka.bootstrap.servers": bootstrap}, subscribe=topic)
    for frame in frames.values():
        _scan(frame.load())  # Spark compiles and starts its workers
    hashes = {name: frame.load().select(_hash(), f.count("*")).first() for name, frame in frames.items()}
    for _ in range(int(rounds)):
        for name, frame in frames.items():
            print(f"begin {name}", flush=True)
            began = time.monotonic()
            _scan(frame.load())
            hashed = hashes[name]
            assert hashed is not None
            print(f"end {name} {time.monotonic() - began:.3f} {hashed[1]} {hashed[0]}", flush=True)


def _scan(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _hash() -> Column:
    return f.sum(f.xxhash64(*COLUMNS).cast("decimal(20,0)"))


if __name__ == "__main__":
    main(*sys.argv[1:])
