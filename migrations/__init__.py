"""Numbered forward-only SQL files, applied by metastore.postgres.migrate."""
