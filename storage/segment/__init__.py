"""The segment file: an immutable object with batches of many partitions and a footer that describes them."""
