"""Committed offsets of groups of either kind: OffsetCommit and OffsetFetch."""
