"""Chunked clean-ups that any agent runs at any time.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
