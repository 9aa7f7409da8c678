"""The stateless process that speaks Kafka to clients.

The folders are the paths: listener -> protocol -> produce (receive, validate, buffer, upload,
commit, acknowledge) and fetch (plan, locate, read, assemble); cluster, groups and admin beside them.
"""
