"""Handlers of requests about topics, offsets, configs and the cluster."""
