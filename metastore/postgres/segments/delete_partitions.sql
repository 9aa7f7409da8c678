-- The delete markers of partitions.

-- DELETE_PARTITION_STARTED for a deleted partition that has keys, once.
-- Locks: the marker's row, the head's row; after files' rows. Idempotent: yes. Cost: two index probes; three writes.
CREATE OR REPLACE FUNCTION begin_partition_delete(p_key bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_gone deleted_partitions;
BEGIN
    SELECT * INTO v_gone FROM deleted_partitions d
     WHERE d.partition_key = p_key AND d.topic_id IS NOT NULL
       AND NOT EXISTS (SELECT FROM remote_partitions m WHERE m.partition_key = p_key)
       AND EXISTS (SELECT FROM remote_segments s
                    WHERE s.topic_id = d.topic_id AND s.partition_index = d.partition_index);
    IF FOUND THEN
        INSERT INTO remote_partitions (topic_id, partition_index, partition_key, end_offset, epoch, state, broker_id,
                                       event_ms, metadata_partition, log_offset)
        VALUES (v_gone.topic_id, v_gone.partition_index, p_key, v_gone.end_offset, nextval('segment_epochs'),
                partition_delete_marked(), -1, 0, metadata_partition(v_gone.topic_id, v_gone.partition_index),
                -1 - p_key);  -- an offset follows
        PERFORM record_partitions(ARRAY[p_key], partition_delete_started());
    END IF;
END $$;

-- Record a state for the markers of some partitions, one after the other.
-- Locks: the markers' rows, held by the caller; the heads' rows, ascending. Idempotent: no. Cost: two writes each.
CREATE OR REPLACE FUNCTION record_partitions(p_keys bigint[], p_state int) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_parts   smallint[];
    v_offsets bigint[];
    v_audited bigint[];
    v_now     bigint;
BEGIN
    SELECT array_agg(m.metadata_partition ORDER BY k.number) INTO v_parts
      FROM unnest(p_keys) WITH ORDINALITY AS k (key, number) JOIN remote_partitions m ON m.partition_key = k.key;
    SELECT array_agg(log_offset ORDER BY number), array_agg(audit_offset ORDER BY number) INTO v_offsets, v_audited
      FROM next_log_offsets(v_parts, true);
    v_now := wall_ms();
    WITH moved AS (
        UPDATE remote_partitions m SET state = p_state, event_ms = v_now, log_offset = k.log_offset
          FROM unnest(p_keys, v_offsets, v_audited) AS k (key, log_offset, audit_offset)
         WHERE m.partition_key = k.key
        RETURNING m.*, k.audit_offset
    )
    INSERT INTO remote_segment_events (metadata_partition, audit_offset, log_offset, api_key, topic_id, partition_index,
                                       end_offset, epoch, state, cause, broker_id, event_ms)
    SELECT metadata_partition, audit_offset, log_offset, 2, topic_id, partition_index, end_offset, epoch, state,
           cause_partition_deleted(), broker_id, event_ms
      FROM moved;
END $$;

-- DELETE_PARTITION_FINISHED for up to p_limit purged partitions without a key that is not tombstoned; then, when all
-- tombstones of a partition's keys were removed too, the marker's own tombstone. How many markers changed.
-- Locks: the markers' rows, ascending; the heads' rows, ascending. Idempotent: yes. Cost: a probe or two per marker that
-- is not tombstoned.
CREATE OR REPLACE FUNCTION finish_partition_deletes(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_finished bigint[];
    v_gone     bigint[];
    v_parts    smallint[];
    v_offsets  bigint[];
    v_now      timestamptz;
BEGIN
    SELECT array_agg(partition_key ORDER BY partition_key) INTO v_finished
      FROM (SELECT partition_key FROM remote_partitions m
             WHERE tombstoned_at IS NULL AND state = partition_delete_started()
               AND NOT EXISTS (SELECT FROM deleted_partitions d WHERE d.partition_key = m.partition_key)
               AND NOT EXISTS (SELECT FROM remote_segments s
                                WHERE s.topic_id = m.topic_id AND s.partition_index = m.partition_index
                                  AND s.tombstoned_at IS NULL)
             ORDER BY partition_key LIMIT p_limit FOR UPDATE) AS f;
    IF v_finished IS NOT NULL THEN
        PERFORM record_partitions(v_finished, partition_delete_finished());
    END IF;
    SELECT array_agg(partition_key ORDER BY partition_key), array_agg(part ORDER BY partition_key) INTO v_gone, v_parts
      FROM (SELECT partition_key, metadata_partition AS part FROM remote_partitions m
             WHERE tombstoned_at IS NULL AND state = partition_delete_finished()
               AND NOT EXISTS (SELECT FROM remote_segments s
                                WHERE s.topic_id = m.topic_id AND s.partition_index = m.partition_index)
             ORDER BY partition_key LIMIT p_limit FOR UPDATE) AS g;
    IF v_gone IS NOT NULL THEN
        SELECT array_agg(log_offset ORDER BY number) INTO v_offsets FROM next_log_offsets(v_parts, false);
        v_now := wall_time();
        UPDATE remote_partitions m SET tombstoned_at = v_now, event_ms = to_ms(v_now), log_offset = k.log_offset
          FROM unnest(v_gone, v_offsets) AS k (key, log_offset) WHERE m.partition_key = k.key;
    END IF;
    RETURN coalesce(cardinality(v_finished), 0) + coalesce(cardinality(v_gone), 0);
END $$;
