"""Turns socket bytes into requests and responses into socket bytes; it handles frames, not APIs."""
