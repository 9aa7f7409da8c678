"""Kafka's wire format: hand-written codecs for Produce and Fetch, kio for all other APIs."""
