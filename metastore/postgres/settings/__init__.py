"""Settings with one value in the cluster: what processes propose, and the values that SQL functions use.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
