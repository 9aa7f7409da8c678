-- The commit shard of a partition key: the arithmetic of metastore/keys.py, and partitions.shard.
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION commit_shard(p_key bigint, p_shards smallint) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (((p_key >> 24) + (p_key & 16777215)) % p_shards)::smallint;
