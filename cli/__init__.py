"""The `headrace` command: the only package that composes agent, compactor, metastore and storage."""
