"""The read side for people and tools.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
