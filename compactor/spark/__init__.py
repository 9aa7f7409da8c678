"""Compaction on Spark: the same merge, many executors, one fenced swap on the driver."""
