"""The active controller's lease, and the actions that need it.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
