"""Exports a topic to Parquet files: resumable, every offset exactly once."""
