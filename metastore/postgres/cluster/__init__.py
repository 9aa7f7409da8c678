"""The metadata log, and what is appended to it: topics, partitions, agents, configs.

The Python of this noun is next to its SQL; `migrate` installs the functions.
"""
