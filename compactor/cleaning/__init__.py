"""Log compaction by key: only the last record of each key stays."""
