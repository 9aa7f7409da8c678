"""The `headrace` command: the only composer of agent, compactor, metastore and storage."""
