"""Linked topics: copies of topics of other clusters."""
