"""A driver with a stream from Spark's own Kafka source: `kafka_stream_driver.py BOOTSTRAP DIRECTORY JARS run|finish`.

`run` makes small micro-batches until it is killed; `finish` reads the rest, and prints the rows, and how many
(partition, offset, value) are distinct among them.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(bootstrap: str, directory: str, jars: str, mode: str) -> None:
    """From the checkpoint in the directory."""
    builder = SparkSession.builder.master("local[2]").appName("kafka-source-killed").config("spark.jars", jars)
    for name, value in {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    stream = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": bootstrap, "subscribe": "orders", "startingOffsets": "earliest"},
        maxOffsetsPerTrigger="50" if mode == "run" else "3000",
    )
    rows = stream.load().selectExpr("partition", "offset", "cast(value as string) as value")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
    if mode == "run":
        writer.start(f"{directory}/rows").awaitTermination()
        return
    writer.trigger(availableNow=True).start(f"{directory}/rows").awaitTermination()
    found = spark.read.parquet(f"{directory}/rows")
    print(f"found {found.count()} {found.distinct().count()} {found.select('value').distinct().count()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
