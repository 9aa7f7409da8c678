"""Health, metrics and status on a thread and loop of their own."""
