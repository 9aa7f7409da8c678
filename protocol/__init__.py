"""Kafka's wire format: hand-written for Produce and Fetch, kio for everything else."""
