"""Offsets of groups that links copy."""
