"""Configs of topics, brokers, loggers and groups: describe, validate, change."""
