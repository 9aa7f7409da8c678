"""A topic into another, straight from and to the bucket: headrace_source.py BOOTSTRAP FROM TO CHECKPOINT

    pip install '.[spark]'   # in a checkout; docs/start/INSTALL.md has other ways
    python headrace_source.py 127.0.0.1:9092 orders copy /tmp/checkpoint

For `headrace dev`; elsewhere set HEADRACE_METASTORE_URL, HEADRACE_BUCKET and the bucket's keys in the environment.
Copies what there is, and ends. The next run continues from the checkpoint: each record is copied once.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from headrace.spark import HeadraceDataSource


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    """Follow the topic from the checkpoint to the end of the topic."""
    spark = SparkSession.builder.appName("headrace-source").getOrCreate()
    spark.dataSource.register(HeadraceDataSource)
    cluster = {"kafka.bootstrap.servers": bootstrap}
    records = spark.readStream.format("headrace").options(**cluster, subscribe=source, startingOffsets="earliest")
    rows = records.option("includeHeaders", "true").load().drop("topic", "partition")
    writer = rows.writeStream.format("headrace").options(**cluster, topic=target, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
