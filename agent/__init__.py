"""The stateless process that serves the Kafka protocol to clients.

The folders are the paths: listener -> protocol -> produce (receive, validate, buffer, upload,
commit, acknowledge) and fetch (plan, locate, read, assemble); also cluster, groups and admin.
"""
