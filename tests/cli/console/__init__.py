"""The console: its pure parts, its pages of a running cluster, and a walk in a browser."""
