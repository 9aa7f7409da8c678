"""A small Kafka client for tools and links: it negotiates versions and sends each request to the right broker."""
