-- Forget producers that were silent for the cluster's producer.id.expiration.ms.

-- Up to p_limit of them; returns how many: none while the cluster has no value. Once there are none, up to p_limit
-- topics that were deleted before that time: no producer continues from them any more.
-- Locks, idempotent, cost: as forget_producers; the rows of those topics, which no other session changes.
CREATE OR REPLACE FUNCTION expire_producer_state(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_silent bigint := cluster_setting('producer.id.expiration.ms');
    v_gone   int;
BEGIN
    IF v_silent IS NULL THEN
        RETURN 0;
    END IF;
    v_gone := forget_producers(greatest((wall_ms() - v_silent) / 3600000, 0)::int, p_limit);
    IF v_gone = 0 THEN
        DELETE FROM deleted_topics
         WHERE topic_number IN (SELECT topic_number FROM deleted_topics
                                 WHERE deleted_at <= to_timestamp(greatest(wall_ms() - v_silent, 0) / 1000.0)
                                 ORDER BY deleted_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
        GET DIAGNOSTICS v_gone = ROW_COUNT;
    END IF;
    RETURN v_gone;
END $$;

-- Forget up to p_limit producers without an open transaction in the partition that were last learned of before this hour (of wall_ms()); returns how many. All are
-- of one commit shard, that of the first one: a call that waits for one shard holds up the commits of no other.
-- Locks: that shard's, for the time of one chunk; so no commit judges by a row that is being deleted.
-- Idempotent: repeating continues with the next chunk, until a call returns 0.
-- Cost: O(expired), through producer_state_touched; an hour's resolution.
CREATE OR REPLACE FUNCTION forget_producers(p_hour int, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_shards  smallint := (SELECT commit_shards FROM cluster);
    v_shard   smallint;
    v_keys    bigint[];
    v_ids     bigint[];
    v_expired int;
BEGIN
    SELECT min(shard) FILTER (WHERE place = 1), array_agg(partition_key), array_agg(producer_id)
      INTO v_shard, v_keys, v_ids
      FROM (SELECT *, first_value(shard) OVER (ORDER BY place) AS chosen
              FROM (SELECT partition_key, producer_id, commit_shard(partition_key, v_shards) AS shard,
                           row_number() OVER (ORDER BY touched_hour) AS place
                      FROM (SELECT partition_key, producer_id, touched_hour FROM producer_state s
                             WHERE touched_hour < p_hour
                               AND NOT EXISTS (SELECT FROM transaction_partitions t
                                                WHERE t.producer_id = s.producer_id
                                                  AND t.partition_key = s.partition_key)
                             ORDER BY touched_hour LIMIT p_limit) AS oldest) AS placed
           ) AS expired
     WHERE shard = chosen;
    IF v_shard IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM lock_shards(ARRAY[v_shard]);
    DELETE FROM producer_state s
     USING unnest(v_keys, v_ids) AS e (partition_key, producer_id)
     WHERE s.partition_key = e.partition_key AND s.producer_id = e.producer_id
       AND NOT EXISTS (SELECT FROM transaction_partitions t
                        WHERE t.producer_id = s.producer_id AND t.partition_key = s.partition_key)
       AND s.touched_hour < p_hour;  -- learned of while we waited
    GET DIAGNOSTICS v_expired = ROW_COUNT;
    RETURN v_expired;
END $$;
