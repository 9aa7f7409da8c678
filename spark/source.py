"""The Python data source `headrace`: its name, its schema, and the readers that Spark asks it for.

    spark.dataSource.register(HeadraceDataSource)
    spark.read.format("headrace").option("subscribe", "orders").load()

Place: in Spark's Python workers: on the driver for planning, on executors for reading. PySpark 4.0 or newer.
Invariant: options are checked before anything is read. docs/start/SPARK.md describes them.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.scan.options import parse_options
from headrace.spark.batch import TopicReader
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
    """Reads topics straight from the segment files."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        """The columns of Spark's Kafka source, or those of the option `columns`."""
        columns = parse_options(self.options, streaming=None).columns
        return ", ".join(f"{name} {_TYPES[name]}" for name in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TopicStreamReader(dict(self.options), schema)
