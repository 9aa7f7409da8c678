"""Background jobs: added, leased to one worker at a time, ended.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
