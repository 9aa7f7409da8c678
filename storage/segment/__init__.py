"""The segment file: an immutable object of many partitions' batches and a footer that explains it."""
