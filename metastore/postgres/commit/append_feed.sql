-- Number a change of one commit shard and announce it to every reader; returns its seq.
-- p_kind and p_payload: metastore.api.read.FeedKind and metastore/postgres/packing.py.
-- Locks: the caller holds the shard's lock (lock_shards), so rows become visible in seq order;
-- then commit_shards' row. Idempotent: no, each call is a row. Cost: one HOT update, one insert.
CREATE OR REPLACE FUNCTION append_feed(p_shard smallint, p_kind smallint, p_payload bytea) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_seq bigint;
BEGIN
    UPDATE commit_shards SET seq = seq + 1 WHERE shard = p_shard RETURNING seq INTO STRICT v_seq;
    INSERT INTO commit_log (slot, shard, seq, kind, payload)
    VALUES (feed_slot(), p_shard, v_seq, p_kind, p_payload);
    RETURN v_seq;
END $$;
