"""Requests about topics and offsets that neither produce nor fetch."""
