"""Topics as Iceberg tables, appended by Spark: the command `headrace-spark-tables`."""
