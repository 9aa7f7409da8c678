"""A fuzzer of requests: every API and version, against a live agent."""
