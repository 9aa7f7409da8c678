"""The end of segment files, and an index made again from the bucket.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
