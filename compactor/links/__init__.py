"""The workers' part of links: partitions of another cluster, copied with their offsets."""
