"""Bringing back deleted topics, and records below a log start.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
