"""Topics as Spark DataFrames: `spark.dataSource.register(HeadraceDataSource)`, format `headrace`. `table_end` says
where the Iceberg table of a topic ends, for a query that continues with the topic.
"""

from headrace.spark.source import HeadraceDataSource
from headrace.tables.state import TableEnd, table_end

__all__ = ["HeadraceDataSource", "TableEnd", "table_end"]
