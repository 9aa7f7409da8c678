-- Reserve a file id for a lease and record COPY_STARTED for the segments that the file is going to hold, before anything
-- of it is stored. p_end[i] is fixed by the job's plan. A key that the lease started before, under another file id, gets
-- this attempt: the earlier file loses its reference, and its object is deleted.
--
-- Answers metastore.api.segments.StartOutcome: keyless, and nothing happened, below level 1 of the feature; refused if the
-- id cannot be used any more; overtaken if a key of the same partition and end offset has a higher epoch: the work
-- is repeated under another lease, so that the highest epoch is what is read.
--
-- Locks: the job's row, shared; the files' rows, ascending; the keys' rows; the heads' rows, ascending.
-- Idempotent: yes, by file id. Cost: two inserts per segment.
CREATE OR REPLACE FUNCTION start_segments(
    p_job_id bigint, p_epoch bigint, p_file_id uuid, p_born_ms bigint, p_level smallint,
    p_segment uuid[], p_key bigint[], p_start bigint[], p_end bigint[], p_leader_epoch int[], p_time bigint[],
    p_size bigint[]
) RETURNS smallint
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_files uuid[];  -- of earlier attempts
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    IF segment_level() < 1 THEN
        RETURN start_keyless();
    END IF;
    INSERT INTO segment_files (file_id, state, level, size, body_bytes, live_bytes, committed_at, segments)
    SELECT p_file_id, file_reserved(), p_level, 0, 0, 0, wall_time(), 0
     WHERE birth_accepted(p_born_ms)
    ON CONFLICT DO NOTHING;
    SELECT array_agg(DISTINCT s.file_id) INTO v_files
      FROM unnest(p_key, p_end) AS t (key, end_offset)
      JOIN partitions p ON p.partition_key = key
      JOIN remote_segments s ON s.topic_id = p.topic_id AND s.partition_index = p.partition_index
                            AND s.end_offset = t.end_offset AND s.epoch = p_epoch AND s.file_id <> p_file_id;
    PERFORM FROM segment_files WHERE file_id = ANY (v_files || p_file_id) ORDER BY file_id FOR NO KEY UPDATE;
    PERFORM FROM segment_files WHERE file_id = p_file_id AND state IN (file_reserved(), file_live());
    IF NOT FOUND THEN
        RETURN start_refused();
    END IF;
    PERFORM segment_refused(s, segment_copy_started()) FROM remote_segments s
       JOIN partitions p USING (topic_id, partition_index)
       JOIN unnest(p_key, p_end) AS t (key, end_offset) ON p.partition_key = key AND s.end_offset = t.end_offset
      WHERE s.epoch = p_epoch AND s.file_id <> p_file_id
        AND (s.tombstoned_at IS NOT NULL OR NOT segment_may_become(s.state, segment_copy_started()));
    PERFORM FROM remote_segments s
       JOIN partitions p USING (topic_id, partition_index)
       JOIN unnest(p_key, p_end) AS t (key, end_offset) ON p.partition_key = key AND s.end_offset = t.end_offset
      WHERE s.epoch > p_epoch AND s.tombstoned_at IS NULL AND s.state < segment_delete_started();
    IF FOUND THEN
        DELETE FROM segment_files WHERE file_id = p_file_id AND state = file_reserved() AND segments = 0;
        RETURN start_overtaken();
    END IF;

    PERFORM start_keys(p_job_id, p_epoch, p_file_id, p_segment, p_key, p_start, p_end, p_leader_epoch, p_time, p_size,
                       cause_upload());
    PERFORM give_up_attempts(v_files);
    RETURN start_done();
END $$;

-- COPY_STARTED for keys of a file under p_epoch, where it is not recorded yet for this file; none of a deleted partition.
-- Locks: the keys' rows; the heads' rows, ascending; the caller holds the file's row. Idempotent: yes. Cost: two inserts per key.
CREATE OR REPLACE FUNCTION start_keys(
    p_job_id bigint, p_epoch bigint, p_file_id uuid, p_segment uuid[], p_key bigint[], p_start bigint[], p_end bigint[],
    p_leader_epoch int[], p_time bigint[], p_size bigint[], p_cause int
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_numbers bigint[];
    v_parts   smallint[];
    v_offsets bigint[];
    v_audited bigint[];
    v_broker  int := job_broker(p_job_id);
    v_now     timestamptz;
BEGIN
    SELECT array_agg(number ORDER BY number), array_agg(metadata_partition(p.topic_id, p.partition_index) ORDER BY number)
      INTO v_numbers, v_parts
      FROM unnest(p_key, p_end) WITH ORDINALITY AS t (key, end_offset, number)
      JOIN partitions p ON p.partition_key = key
      LEFT JOIN remote_segments s ON s.topic_id = p.topic_id AND s.partition_index = p.partition_index
                                 AND s.end_offset = t.end_offset AND s.epoch = p_epoch
     WHERE s.file_id IS DISTINCT FROM p_file_id;
    IF v_numbers IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(log_offset ORDER BY number), array_agg(audit_offset ORDER BY number) INTO v_offsets, v_audited
      FROM next_log_offsets(v_parts, true);
    v_now := wall_time();
    WITH started AS (
        INSERT INTO remote_segments AS s (
            topic_id, partition_index, end_offset, epoch, segment_id, file_id, partition_key, start_offset, leader_epoch,
            max_timestamp, size, state, cause, live_extents, reference, broker_id, job_id, event_ms, due_at,
            metadata_partition, log_offset)
        SELECT p.topic_id, p.partition_index, p_end[number], p_epoch, p_segment[number], p_file_id, p.partition_key,
               p_start[number], p_leader_epoch[number], p_time[number], p_size[number], segment_copy_started(),
               p_cause, 0, reference_held(), v_broker, p_job_id, to_ms(v_now), v_now, part, log_offset
          FROM unnest(v_numbers, v_parts, v_offsets) AS t (number, part, log_offset)
          JOIN partitions p ON p.partition_key = p_key[number]
        ON CONFLICT (topic_id, partition_index, end_offset, epoch) DO UPDATE
           SET segment_id = excluded.segment_id, file_id = excluded.file_id, start_offset = excluded.start_offset,
               leader_epoch = excluded.leader_epoch, max_timestamp = excluded.max_timestamp, size = excluded.size,
               broker_id = excluded.broker_id, event_ms = excluded.event_ms, due_at = excluded.due_at, log_offset = excluded.log_offset
        RETURNING *
    )
    INSERT INTO remote_segment_events (metadata_partition, audit_offset, log_offset, api_key, topic_id, partition_index,
                                       end_offset, epoch, state, cause, broker_id, event_ms, segment_id, file_id, job_id,
                                       start_offset, leader_epoch, max_timestamp, size)
    SELECT metadata_partition, t.audit_offset, s.log_offset, 0, topic_id, partition_index, end_offset, epoch, state, cause,
           broker_id, event_ms, segment_id, file_id, job_id, start_offset, leader_epoch, max_timestamp, size
      FROM started s JOIN unnest(v_parts, v_offsets, v_audited) AS t (part, log_offset, audit_offset)
                       ON t.part = s.metadata_partition AND t.log_offset = s.log_offset;
    UPDATE segment_files SET segments = segments + cardinality(v_numbers) WHERE file_id = p_file_id;
END $$;

-- Reserved files that another attempt took the place of: what no key refers to any more is given to the janitor.
-- Locks: none but the files' rows, which the caller holds. Idempotent: yes. Cost: an update per file.
CREATE OR REPLACE FUNCTION give_up_attempts(p_files uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    UPDATE segment_files f
       SET segments = held.segments,
           state = CASE WHEN held.segments = 0 AND f.state = file_reserved() THEN file_condemned() ELSE f.state END,
           dead_at = CASE WHEN held.segments = 0 AND f.state = file_reserved() THEN wall_time() ELSE f.dead_at END
      FROM (SELECT u.file_id, (SELECT count(*) FROM remote_segments s
                                WHERE s.file_id = u.file_id AND s.state = segment_copy_started()
                                  AND s.due_at IS NOT NULL AND s.tombstoned_at IS NULL) AS segments
              FROM unnest(p_files) AS u (file_id)) AS held
     WHERE f.file_id = held.file_id AND f.state = file_reserved();
END $$;

-- A lease that is lost may still say that its upload is complete: COPY_FINISHED under its own keys, without an extent.
-- Nothing becomes readable; the cleanup deletes it. Keys in another state are left. How many keys.
-- Locks: the keys' rows, the heads' rows, ascending. Idempotent: yes. Cost: as record_segments.
CREATE OR REPLACE FUNCTION finish_lost_upload(p_job_id bigint, p_epoch bigint, p_file_id uuid) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_keys remote_segments[];
BEGIN
    SELECT array_agg(s::remote_segments ORDER BY s.topic_id, s.partition_index, s.end_offset) INTO v_keys
      FROM (SELECT * FROM remote_segments
             WHERE state = segment_copy_started() AND due_at IS NOT NULL AND tombstoned_at IS NULL
               AND file_id = p_file_id AND epoch = p_epoch AND job_id = p_job_id
             ORDER BY topic_id, partition_index, end_offset, epoch FOR UPDATE) AS s;
    PERFORM record_keys(v_keys, segment_copy_finished(), cause_upload(), p_job_id);
    UPDATE remote_segments s SET due_at = to_timestamp(s.event_ms / 1000.0)
      FROM unnest(v_keys) AS k
     WHERE s.topic_id = k.topic_id AND s.partition_index = k.partition_index AND s.end_offset = k.end_offset
       AND s.epoch = k.epoch;
    RETURN coalesce(cardinality(v_keys), 0);
END $$;

-- record_segments for rows.
-- Locks, idempotence, cost: as that.
CREATE OR REPLACE FUNCTION record_keys(p_keys remote_segments[], p_state int, p_cause int, p_job_id bigint) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT record_segments(array_agg(topic_id ORDER BY number), array_agg(partition_index ORDER BY number),
                           array_agg(end_offset ORDER BY number), array_agg(epoch ORDER BY number),
                           p_state, p_cause, p_job_id)
      FROM (SELECT k.*, row_number() OVER () AS number FROM unnest(p_keys) AS k) AS k
$$;
