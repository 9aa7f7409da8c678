-- Where the source's partitions are. p_ready: the copy has all that the source had at this look, at p_ends[i], so that it may be
-- promoted as long as its log ends there. p_lost counts up. An end of -1: the source has not said it to this worker yet.
-- Locks: the job's row, shared; the linked partitions' rows, ascending. Idempotent: but for p_lost. Cost: an update each.
CREATE OR REPLACE FUNCTION report_partitions(
    p_job_id bigint, p_epoch bigint, p_key bigint[], p_starts bigint[], p_ends bigint[], p_stables bigint[],
    p_ready boolean[], p_lost bigint[], p_problems text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM linked_partitions WHERE partition_key = ANY (p_key) ORDER BY partition_key FOR NO KEY UPDATE;
    UPDATE linked_partitions l
       SET source_start = CASE WHEN r.finish < 0 THEN l.source_start ELSE r.start END,
           source_end = CASE WHEN r.finish < 0 THEN l.source_end ELSE r.finish END,
           source_stable = CASE WHEN r.finish < 0 THEN l.source_stable ELSE r.stable END,
           seen_at = CASE WHEN r.finish < 0 THEN l.seen_at ELSE wall_time() END,
           current_at = CASE WHEN r.finish BETWEEN 0 AND h.high_watermark THEN wall_time() ELSE l.current_at END,
           ready_end = CASE WHEN r.ready THEN r.finish ELSE -1 END,
           lost = l.lost + r.lost, problem = r.problem
      FROM unnest(p_key, p_starts, p_ends, p_stables, p_ready, p_lost, p_problems)
           AS r (key, start, finish, stable, ready, lost, problem)
     CROSS JOIN LATERAL (SELECT high_watermark FROM partition_heads WHERE partition_key = r.key
                          ORDER BY update_block DESC LIMIT 1) AS h
     WHERE l.partition_key = r.key;
END $$;

-- States of producers as the source knows them, when the copy has all that the source has; false for an id of this cluster,
-- which is left out. Batches that are known here stay known; a state of a later epoch stays as it is.
-- Locks: the job's row, shared; the partitions' rows, ascending; their commit shards. Idempotent: yes.
-- Cost: an index probe and an insert per producer.
CREATE OR REPLACE FUNCTION add_copied_producers(
    p_job_id bigint, p_epoch bigint, p_key bigint[], p_id bigint[], p_producer_epoch int[], p_next int[], p_ring bytea[]
) RETURNS boolean[]
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_shards smallint := (SELECT commit_shards FROM cluster);
    v_free   boolean[] := array(SELECT NOT is_own_producer(id) FROM unnest(p_id) WITH ORDINALITY AS s (id, n) ORDER BY n);
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM partitions WHERE partition_key = ANY (p_key) ORDER BY partition_key FOR NO KEY UPDATE;
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(p_key) AS key;
    PERFORM set_copied_producers(array_agg(key), array_agg(id), array_agg(epoch), array_agg(next), array_agg(ring))
       FROM unnest(p_key, p_id, p_producer_epoch, p_next, p_ring, v_free) AS s (key, id, epoch, next, ring, free)
       JOIN partitions p ON p.partition_key = key AND p.state = state_linked()
      WHERE free AND NOT EXISTS (SELECT FROM producer_state k WHERE k.partition_key = key AND k.producer_id = id
                                    AND k.epoch > s.epoch);
    RETURN v_free;
END $$;
