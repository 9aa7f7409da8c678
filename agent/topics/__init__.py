"""Handlers of requests about topics, configs and what clients ask of the cluster."""
