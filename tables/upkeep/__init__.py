"""Upkeep of tables: small files become larger ones, old rows and snapshots go, rows are deleted by a condition."""
