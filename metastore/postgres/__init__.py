"""The metastore's boundary on Postgres: psycopg for every path, SQL in .sql files."""
