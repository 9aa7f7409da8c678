"""A cluster described in files: its comparison, its files, and runs against clusters."""
