-- Number a change of one commit shard and announce it to every reader; returns its seq.
-- p_kind and p_payload: metastore.api.read.FeedKind and metastore/postgres/packing.py.
-- Locks: the caller holds the shard's lock (lock_shards), so rows become visible in seq order;
-- then commit_shards' row. Idempotent: no, each call is a row. Cost: one HOT update, one insert.
CREATE OR REPLACE FUNCTION append_feed(p_shard smallint, p_kind smallint, p_payload bytea) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_seq bigint;
BEGIN
    UPDATE commit_shards c SET seq = c.seq + 1, seq_block = update_block(c.seq + 1)
     WHERE c.ctid = (SELECT ctid FROM commit_shards WHERE shard = p_shard ORDER BY seq_block DESC LIMIT 1)
    RETURNING c.seq INTO STRICT v_seq;
    INSERT INTO commit_log (slot, shard, seq, kind, payload)
    VALUES (feed_slot(), p_shard, v_seq, p_kind, p_payload);
    RETURN v_seq;
END $$;

-- Rises with every 32nd update of a row, and is the last column of its key: a probe that orders by it, newest first,
-- reads at most 32 versions, however many a held snapshot keeps. The updates in between stay HOT.
-- Locks: none. Idempotent: a pure function. Cost: none.
CREATE OR REPLACE FUNCTION update_block(p_updates bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_updates / 32;
