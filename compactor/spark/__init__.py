"""Compaction on Spark: the same merge on many executors, with one fenced swap on the driver."""
