-- What the removal of extents means for their segments: one element per extent that had a segment. A segment without live
-- extents gets its DELETE_STARTED now, in the transaction that made its records unreachable.
-- Replaced in place it gets it under its own key: a key with a higher epoch may be what is read. Removed by a log start or
-- with its partition, it gets it under a new key with an epoch drawn here, which takes the reference over: all that was
-- ever uploaded for this end offset goes (a key may open at DELETE_STARTED). Of keys with one end offset that end
-- together, the highest epoch's reference is taken over; the release of the new key takes the others' along.
-- Every place that removes extents calls this, and nothing else counts live extents down.
-- Locks: the keys' rows, in order; the heads' rows, ascending. After files' rows, before commit shards.
-- Idempotent: no, the caller removes an extent once. Cost: one HOT update per segment; two more writes when it ends.
CREATE OR REPLACE FUNCTION end_segments(
    p_topic uuid[], p_index int[], p_end bigint[], p_epoch int[], p_cause int, p_job_id bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_ended   remote_segments[];
    v_new     int;
    v_parts   smallint[];
    v_offsets bigint[];
    v_audited bigint[];
    v_broker  int := job_broker(p_job_id);
    v_now     timestamptz;
BEGIN
    IF coalesce(cardinality(p_topic), 0) = 0 THEN
        RETURN;
    END IF;
    PERFORM FROM remote_segments s
      WHERE (s.topic_id, s.partition_index, s.end_offset, s.epoch) IN
            (SELECT * FROM unnest(p_topic, p_index, p_end, p_epoch))
      ORDER BY s.topic_id, s.partition_index, s.end_offset, s.epoch FOR NO KEY UPDATE;
    WITH counted AS (
        UPDATE remote_segments s SET live_extents = s.live_extents - g.extents
          FROM (SELECT topic_id, partition_index, end_offset, epoch, count(*)::int AS extents
                  FROM unnest(p_topic, p_index, p_end, p_epoch) AS k (topic_id, partition_index, end_offset, epoch)
                 GROUP BY 1, 2, 3, 4) AS g
         WHERE s.topic_id = g.topic_id AND s.partition_index = g.partition_index AND s.end_offset = g.end_offset
           AND s.epoch = g.epoch
        RETURNING s.*
    )
    SELECT array_agg(c::remote_segments ORDER BY c.topic_id, c.partition_index, c.end_offset, c.epoch) INTO v_ended
      FROM counted c WHERE c.live_extents = 0;
    IF v_ended IS NULL THEN
        RETURN;
    ELSIF p_cause IN (cause_replaced(), cause_lost()) THEN
        PERFORM record_keys(v_ended, segment_delete_started(), p_cause, p_job_id);
        RETURN;
    END IF;

    v_new := nextval('segment_epochs');
    SELECT array_agg(h::remote_segments ORDER BY h.topic_id, h.partition_index, h.end_offset) INTO v_ended
      FROM (SELECT DISTINCT ON (topic_id, partition_index, end_offset) k.* FROM unnest(v_ended) AS k
             ORDER BY topic_id, partition_index, end_offset, epoch DESC) AS h;
    SELECT array_agg((v_ended[i]).metadata_partition ORDER BY i) INTO v_parts FROM generate_subscripts(v_ended, 1) AS i;
    SELECT array_agg(log_offset ORDER BY number), array_agg(audit_offset ORDER BY number) INTO v_offsets, v_audited
      FROM next_log_offsets(v_parts, true);
    v_now := wall_time();
    FOR number IN 1 .. cardinality(v_ended) LOOP
        INSERT INTO remote_segments
        SELECT s.topic_id, s.partition_index, s.end_offset, v_new, s.segment_id, s.file_id, s.partition_key,
               s.start_offset, s.leader_epoch, s.max_timestamp, s.size, segment_delete_started(), p_cause, 0,
               s.reference, v_broker, p_job_id, to_ms(v_now), v_now, NULL, s.metadata_partition, v_offsets[number]
          FROM (SELECT (v_ended[number]).*) AS s;
        INSERT INTO remote_segment_events (metadata_partition, audit_offset, log_offset, api_key, topic_id,
                                           partition_index, end_offset, epoch, state, cause, broker_id, event_ms,
                                           segment_id, file_id, job_id)
        SELECT s.metadata_partition, v_audited[number], v_offsets[number], 1, s.topic_id, s.partition_index,
               s.end_offset, v_new, segment_delete_started(), p_cause, v_broker, to_ms(v_now), s.segment_id, s.file_id, p_job_id
          FROM (SELECT (v_ended[number]).*) AS s;
    END LOOP;
    UPDATE remote_segments s SET reference = reference_released()
      FROM unnest(v_ended) AS k
     WHERE s.topic_id = k.topic_id AND s.partition_index = k.partition_index AND s.end_offset = k.end_offset
       AND s.epoch = k.epoch;
END $$;
