"""Requests about agents, features, reassignments and the metadata log."""
