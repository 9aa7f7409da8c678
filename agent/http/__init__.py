"""Health, metrics and status, on a separate thread with a separate event loop."""
