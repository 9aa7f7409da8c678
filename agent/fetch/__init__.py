"""The read path, a file a step: plan, locate, read, assemble; the feed keeps its index fresh."""
