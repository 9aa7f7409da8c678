"""Bulk writes: staged in chunks, decided once, then committed chunk by chunk.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
