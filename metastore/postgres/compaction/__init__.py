"""Decide which files wait to be merged, what of them is live, and the swap.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
