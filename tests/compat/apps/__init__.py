"""Applications that keep their state in compacted topics: Kafka Connect, MirrorMaker 2, Kafka Streams."""
