"""A small Kafka client for the tools: versions agreed with the broker, requests sent to whom they concern."""
