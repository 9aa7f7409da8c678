"""The file cache that the agents of one zone share (docs/decisions/0014-the-zone-cache.md)."""
