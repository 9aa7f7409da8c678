-- Take commit shards' locks until the transaction ends. A transaction that numbers a feed row, or changes what
-- a commit judges by (heads, producer state, the partition itself), holds its shard's lock.
-- Call it in a separate statement: the statements after it see what the last holder committed.
-- Locks: advisory (shard_lock(), shard), ascending, in any order of the array; before any file id,
-- after metadata_head. Idempotent: a lock that is held already is taken again. Cost: no I/O.
CREATE OR REPLACE FUNCTION lock_shards(p_shards smallint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- the sorted sub-query is read row by row: each lock is taken before the next one is asked for
    PERFORM pg_advisory_xact_lock(shard_lock(), s)
       FROM (SELECT DISTINCT s FROM unnest(p_shards) AS s ORDER BY s OFFSET 0) AS ascending;
END $$;
