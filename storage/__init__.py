"""Foundation of all other packages: record batches, segment files, object stores, clock, errors.

It imports no other package of this repository.
"""
