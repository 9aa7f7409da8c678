"""A driver with a stream of small micro-batches, to be killed: `stream_driver.py METASTORE BUCKET DIRECTORY`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from headrace.spark import HeadraceDataSource


def main(metastore_url: str, bucket: str, directory: str) -> None:
    """Run until killed."""
    builder = SparkSession.builder.master("local[2]").appName("headrace-killed")
    for name, value in {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.dataSource.register(HeadraceDataSource)
    stream = spark.readStream.format("headrace").options(
        **{"metastore.url": metastore_url, "bucket": bucket, "subscribe": "orders", "startingOffsets": "earliest"},
        includeHeaders="true",
        maxOffsetsPerTrigger="10",
    )
    writer = stream.load().writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
    writer.start(f"{directory}/rows").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
