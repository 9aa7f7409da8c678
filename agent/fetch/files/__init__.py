"""Byte ranges of segment files: from memory, from the zone, from the bucket; and the batches in them."""
