-- The two logs of remote segments: offsets, and the records of keys that change.

-- The next offsets of some records, one element each, in order: p_partition is the metadata partition, and what is not
-- audited is a tombstone. Offsets are final: the heads stay locked until the commit, so a reader that sees one offset
-- sees all before it.
-- Locks: the heads' rows, ascending; after the files' and segments' rows, before commit shards.
-- Idempotent: no. Cost: one HOT update per partition.
CREATE OR REPLACE FUNCTION next_log_offsets(p_partition smallint[], p_is_audited boolean)
RETURNS TABLE (number bigint, log_offset bigint, audit_offset bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM lock_log_heads(p_partition);
    RETURN QUERY
    WITH wanted AS (
        SELECT number, part, row_number() OVER (PARTITION BY part ORDER BY number) - 1 AS nth
          FROM unnest(p_partition) WITH ORDINALITY AS p (part, number)
    ), moved AS (
        UPDATE remote_log_heads h
           SET next_offset = h.next_offset + w.records,
               next_audit_offset = h.next_audit_offset + CASE WHEN p_is_audited THEN w.records ELSE 0 END
          FROM (SELECT part, count(*) AS records FROM wanted GROUP BY part) AS w
         WHERE h.metadata_partition = w.part
        RETURNING h.metadata_partition AS part, h.next_offset - w.records AS first,
                  h.next_audit_offset - w.records AS first_audited
    )
    SELECT w.number, m.first + w.nth, CASE WHEN p_is_audited THEN m.first_audited + w.nth END
      FROM wanted w JOIN moved m USING (part);
END $$;

-- Lock the heads of some metadata partitions, before several records of one transaction are numbered in turn.
-- Locks: the heads' rows, ascending. Idempotent: yes. Cost: a probe each.
CREATE OR REPLACE FUNCTION lock_log_heads(p_partition smallint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM FROM remote_log_heads WHERE metadata_partition = ANY (p_partition)
      ORDER BY metadata_partition FOR NO KEY UPDATE;
END $$;

-- Record p_state for existing keys, one element each, in order. An illegal transition is refused by name, and with it
-- all of the statement. p_job_id: NULL if no job does it. The caller holds the locks of the keys' rows.
-- Locks: the heads' rows, ascending. Idempotent: no. Cost: an update and an insert per key.
CREATE OR REPLACE FUNCTION record_segments(
    p_topic uuid[], p_index int[], p_end bigint[], p_epoch int[], p_state int, p_cause int, p_job_id bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_parts   smallint[];
    v_offsets bigint[];
    v_audited bigint[];
    v_broker  int := job_broker(p_job_id);
    v_now     timestamptz;
BEGIN
    IF coalesce(cardinality(p_topic), 0) = 0 THEN
        RETURN;
    END IF;
    PERFORM segment_refused(s, p_state)
       FROM unnest(p_topic, p_index, p_end, p_epoch) AS k (topic_id, partition_index, end_offset, epoch)
       JOIN remote_segments s USING (topic_id, partition_index, end_offset, epoch)
      WHERE NOT segment_may_become(s.state, p_state) OR s.tombstoned_at IS NOT NULL;
    SELECT array_agg(metadata_partition(topic_id, partition_index) ORDER BY number) INTO v_parts
      FROM unnest(p_topic, p_index) WITH ORDINALITY AS k (topic_id, partition_index, number);
    SELECT array_agg(log_offset ORDER BY number), array_agg(audit_offset ORDER BY number) INTO v_offsets, v_audited
      FROM next_log_offsets(v_parts, true);
    v_now := wall_time();
    WITH moved AS (
        UPDATE remote_segments s
           SET state = p_state, cause = p_cause, job_id = p_job_id, broker_id = v_broker, event_ms = to_ms(v_now),
               log_offset = k.log_offset,
               due_at = CASE WHEN p_state <> segment_copy_finished() THEN v_now END
          FROM unnest(p_topic, p_index, p_end, p_epoch, v_offsets, v_audited)
               AS k (topic_id, partition_index, end_offset, epoch, log_offset, audit_offset)
         WHERE s.topic_id = k.topic_id AND s.partition_index = k.partition_index AND s.end_offset = k.end_offset
           AND s.epoch = k.epoch
        RETURNING s.*, k.audit_offset
    )
    INSERT INTO remote_segment_events (metadata_partition, audit_offset, log_offset, api_key, topic_id, partition_index,
                                       end_offset, epoch, state, cause, broker_id, event_ms, segment_id, file_id, job_id)
    SELECT metadata_partition, audit_offset, log_offset, 1, topic_id, partition_index, end_offset, epoch, state, cause,
           broker_id, event_ms, segment_id, file_id, job_id
      FROM moved;
END $$;
