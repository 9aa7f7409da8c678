"""headrace.client: the producer and consumer that keep the order of keys."""
