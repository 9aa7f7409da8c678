"""What `headrace doctor` reads of a server's state.

The Python of this noun is next to its SQL.
"""
