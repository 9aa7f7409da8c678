-- What agents prove to each other that they belong to this cluster.
-- Locks: none. Idempotent: reads only. Cost: one row.
SELECT zone_secret FROM cluster
