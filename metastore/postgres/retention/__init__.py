"""Log starts: what decides them and what moves them.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
