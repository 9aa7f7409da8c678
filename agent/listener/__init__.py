"""Sockets to requests and responses to sockets; knows frames, not APIs."""
