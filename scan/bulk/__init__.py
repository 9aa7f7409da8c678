"""Bulk writes: records that many tasks store as segment files, committed once by one driver."""
