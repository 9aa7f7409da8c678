"""Repairing and skipping damage."""
