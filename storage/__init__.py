"""The ground under every other package: batches, segment files, object stores, clock, errors.

Depends on nothing else in this repository.
"""
