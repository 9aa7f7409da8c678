"""Opens the values of records: bytes become the columns of a table with a schema."""
