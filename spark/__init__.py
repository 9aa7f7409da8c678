"""Topics as Spark DataFrames: `spark.dataSource.register(HeadraceDataSource)`, format `headrace`."""

from headrace.spark.source import HeadraceDataSource

__all__ = ["HeadraceDataSource"]
