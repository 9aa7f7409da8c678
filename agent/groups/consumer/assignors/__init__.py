"""Assign partitions to members: pure functions, one file each."""
