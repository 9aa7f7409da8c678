"""`headrace postgres`: roles, database, rights and standbys of the metastore's Postgres, as commands."""
