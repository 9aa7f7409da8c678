-- What happened after p_seqs[i] in commit shard p_shards[i], up to 64 rows per shard and without a gap.
-- One row: incarnation, the database's clock, the metadata log's head, all shards' heads; then the feed
-- rows as four arrays of one length, by shard and seq. If a shard's head is higher than asked, but no
-- row of it is here, its next row is lost.
-- Locks: none; one snapshot for all. Idempotent: reads only.
-- Cost: one row per shard; if any moved on, eight index probes for each that did, and its new rows.
CREATE OR REPLACE FUNCTION poll_feed(p_shards smallint[], p_seqs bigint[])
RETURNS TABLE (incarnation_id uuid, now_ms bigint, metadata_offset bigint, shards smallint[], heads bigint[],
               row_shards smallint[], row_seqs bigint[], row_kinds smallint[], row_payloads bytea[])
LANGUAGE plpgsql STABLE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_shards smallint;
BEGIN
    SELECT c.incarnation_id, wall_ms(), m.next_offset, c.commit_shards
      INTO incarnation_id, now_ms, metadata_offset, v_shards
      FROM cluster c, metadata_head m;
    SELECT array_agg(c.shard ORDER BY c.shard), array_agg(c.seq ORDER BY c.shard)
      INTO shards, heads
      FROM generate_series(0, v_shards - 1) AS number
     CROSS JOIN LATERAL (SELECT shard, seq FROM commit_shards WHERE shard = number::smallint
                          ORDER BY seq_block DESC LIMIT 1) AS c;
    -- heads[1] is shard 0's, and so on: a join would compare each shard with each.
    SELECT array_agg(q.shard ORDER BY q.shard), array_agg(q.seq ORDER BY q.shard)
      INTO p_shards, p_seqs
      FROM unnest(p_shards, p_seqs) AS q (shard, seq)
     WHERE heads[q.shard + 1] > q.seq;
    IF p_shards IS NOT NULL THEN
        SELECT array_agg(q.shard ORDER BY q.shard, l.seq), array_agg(l.seq ORDER BY q.shard, l.seq),
               array_agg(l.kind ORDER BY q.shard, l.seq), array_agg(l.payload ORDER BY q.shard, l.seq)
          INTO row_shards, row_seqs, row_kinds, row_payloads
          FROM unnest(p_shards, p_seqs) AS q (shard, seq)
         CROSS JOIN LATERAL (SELECT seq, kind, payload, row_number() OVER (ORDER BY seq) AS n
                               FROM commit_log
                              WHERE shard = q.shard AND seq > q.seq
                              ORDER BY seq LIMIT 64) AS l
         WHERE l.seq = q.seq + l.n;
    END IF;
    RETURN NEXT;
END $$;
