"""Streams groups: topologies, tasks, members, requests."""
