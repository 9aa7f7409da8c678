"""Reading the lifecycle logs of remote segments: as topics, and for people.

The Python of this noun is next to its SQL.
"""
