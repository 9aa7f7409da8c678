"""The Python data source `headrace`: its name, its schema, and the readers and writers that Spark asks it for.

    spark.dataSource.register(HeadraceDataSource)
    spark.read.format("headrace").option("subscribe", "orders").load()

    frame.write.format("headrace").option("topic", "orders").mode("append").save()

Place: in Spark's Python workers: on the driver for planning and commits, on executors for rows. PySpark 4.0 or newer.
Invariant: options are checked before anything is read or written. docs/start/SPARK.md describes them.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.scan.options import parse_options
from headrace.spark.batch import TopicReader
from headrace.spark.short_errors import short_errors
from headrace.spark.sink import TopicStreamWriter, TopicWriter
from headrace.spark.stream import TopicStreamReader

_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
}


class HeadraceDataSource(DataSource):
    """Reads topics straight from segment files, and writes them as such."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    @short_errors
    def schema(self) -> str:
        """The columns of Spark's Kafka source, or those of the option `columns`."""
        columns = parse_options(self.options, streaming=None).columns
        return ", ".join(f"{name} {_TYPES[name]}" for name in columns)

    @short_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(dict(self.options), schema)

    @short_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TopicStreamReader(dict(self.options), schema)

    @short_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return TopicWriter(dict(self.options), schema, overwrite=overwrite)

    @short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return TopicStreamWriter(dict(self.options), schema, overwrite=overwrite)
