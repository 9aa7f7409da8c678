-- What agents prove to each other that they belong to this cluster, and what else they accept.
-- Locks: none. Idempotent: reads only. Cost: one row.
SELECT zone_secret, zone_secret_other FROM cluster
