"""A small Kafka client for the tools: it negotiates versions and sends each request to the right broker."""
