-- Who this cluster is, and which migrations it has.
-- Locks: none. Idempotent: reads only. Cost: a handful of rows.
SELECT cluster_id, incarnation_id, commit_shards, ARRAY(SELECT name FROM schema_migrations)
  FROM cluster
