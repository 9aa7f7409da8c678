"""Synchronous standbys: whether commits end, and answers from rows that no standby may have."""
