"""The read path, one file per step: plan, locate, read, assemble; the feed keeps its index up to date."""
