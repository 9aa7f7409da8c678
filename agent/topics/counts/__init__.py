"""Counts of partitions: more by CreatePartitions, twice as many or half as many with the order of keys."""
