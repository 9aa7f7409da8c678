"""The stateless process that serves the Kafka protocol to clients.

Each folder imports those below it, and no other: serve (composes an agent) -> topics -> transactions -> fetch, groups,
produce -> listener -> access -> peers -> cluster -> limits. pyproject.toml has this order as an import contract.
"""
