"""Configs of topics, brokers, loggers and groups: shown, judged, changed."""
