"""The newest extents of each partition, from this agent's commits and from the feed."""
