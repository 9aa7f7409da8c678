"""Consumer groups: claims, saved state, committed offsets.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
