"""A topic into Parquet files, with Spark's own Kafka source: kafka_source.py BOOTSTRAP TOPIC FOLDER [OFFSETS]

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        kafka_source.py 127.0.0.1:9092 orders /tmp/out

Reads what there is, at most OFFSETS in a micro-batch, and ends. The next run, also after a crash, continues from the
checkpoint: FOLDER/rows has each record once, for readers that respect Spark's _spark_metadata.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(bootstrap: str, topic: str, folder: str, offsets: str = "1000000") -> None:
    """Follow the topic from the checkpoint in the folder to the end of the topic."""
    spark = SparkSession.builder.appName("kafka-source").getOrCreate()
    records = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed"},
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=offsets,
    )
    rows = records.load().selectExpr("partition", "offset", "timestamp", "CAST(value AS STRING) AS value")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start(f"{folder}/rows").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
