"""`headrace partitions`: what is wrong with a partition, and what to do."""
