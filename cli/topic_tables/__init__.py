"""`headrace tables`: Iceberg tables of topics."""
