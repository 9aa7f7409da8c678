"""What agents used of limits that they share.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
