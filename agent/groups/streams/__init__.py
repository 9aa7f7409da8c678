"""Streams groups (KIP-1071): applications of Kafka Streams that the coordinator assigns tasks to."""
