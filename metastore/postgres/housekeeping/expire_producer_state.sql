-- Forget up to p_limit producers that were silent for the cluster's producer.id.expiration.ms; returns how many.
-- p_expiration_ms counts while the cluster has no value.
-- Locks: the commit shards of what it is about to forget, ascending, for the time of one chunk; so no
-- commit judges by a row that is being deleted. Idempotent: repeating goes on with the next chunk.
-- Cost: O(expired), through producer_state_touched; an hour's resolution.
CREATE OR REPLACE FUNCTION expire_producer_state(p_expiration_ms bigint, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_silent  bigint := coalesce(cluster_setting('producer.id.expiration.ms')::bigint, p_expiration_ms);
    v_hour    int := greatest((wall_ms() - v_silent) / 3600000, 0);  -- touched before it: expired for sure
    v_keys    bigint[];
    v_ids     bigint[];
    v_expired int;
BEGIN
    SELECT array_agg(partition_key), array_agg(producer_id) INTO v_keys, v_ids
      FROM (SELECT partition_key, producer_id FROM producer_state
             WHERE touched_hour < v_hour ORDER BY touched_hour LIMIT p_limit) AS expired;
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, commit_shards))) FROM cluster, unnest(v_keys) AS key;
    DELETE FROM producer_state s
     USING unnest(v_keys, v_ids) AS e (partition_key, producer_id)
     WHERE s.partition_key = e.partition_key AND s.producer_id = e.producer_id
       AND s.touched_hour < v_hour;  -- heard of while we waited
    GET DIAGNOSTICS v_expired = ROW_COUNT;
    RETURN v_expired;
END $$;
