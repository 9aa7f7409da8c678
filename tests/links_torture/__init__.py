"""A link copies three nodes of Apache Kafka, under kills of both sides: `make torture-links`."""
