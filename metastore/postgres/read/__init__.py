"""What a reader must know: extents, offsets by timestamp, ends of leader epochs, the commit feed.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
