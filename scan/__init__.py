"""Reads topics straight from the segment files, without an agent: for Spark and for `headrace export`."""
