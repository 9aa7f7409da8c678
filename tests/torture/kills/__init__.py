"""Runs in which servers are only killed and paused: at the same times for Headrace and for Apache Kafka."""
