"""Hostile and clumsy clients: many small producers, attacks on one agent, and a fuzzer of requests."""
