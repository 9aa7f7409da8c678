-- The database on which the life was begun, beside its server: a server has many, and a dump or a template copy
-- in another one of them is not the metastore (docs/decisions/0094).
ALTER TABLE cluster ADD COLUMN database_oid oid;  -- of pg_database; NULL: not known yet, a life that an older version began
