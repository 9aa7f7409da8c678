"""Damaged extents in Postgres."""
