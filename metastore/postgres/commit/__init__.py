"""The commit: order, offsets and duplicates of stored files' batches; producer ids.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
