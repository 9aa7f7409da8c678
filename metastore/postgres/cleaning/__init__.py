"""Log compaction by key in Postgres."""
