"""Keeps Iceberg tables of topics: each committed record once, read from the bucket without an agent."""
