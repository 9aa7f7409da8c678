"""Clients beside kills and pauses of the servers, the same ones for Headrace and for Apache Kafka."""
