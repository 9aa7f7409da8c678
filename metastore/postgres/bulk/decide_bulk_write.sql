-- Decide a batch of a writer: the chunks of p_attempt are the write, all of them or none. The first attempt at a batch
-- that gets here is the one; every later call for this batch, by any attempt, gets that attempt. An older batch than
-- the newest decided one was complete before. p_is_named: a write that a user named (writeId). An attempt with a topic that
-- the decided one does not have is another write under the same name then: it is refused.
-- p_topics, p_counts: for how many partitions of each topic (by number) the files were laid out; empty: not known. The
-- write is refused from the announcement of a change of partitions on, until it is over, and if the count is another one by now: keys would be in
-- a partition that is not theirs any more. What is decided before a change of partitions is committed before
-- the count grows (assert_no_bulk_writes), a boundary is set (set_split_boundary), an alias is made (merge_children), or a partition is removed.
-- Output: metastore.api.bulk.BulkOutcome; the decided attempt and its chunks; with UNKNOWN_PARTITION, TOPIC_CHANGES and
-- OTHER_TOPIC a partition's key.
-- The files' ids are claimed here, under the unique key that the sweeper uses: a row in state `staged` from now on, so
-- the chunks can be committed at any later time. An id can be claimed until its term ends. A job hands them over to the
-- bucket (decided_bulk_files).
-- Locks: advisory (bulk_writer_lock(), hash of the writer), after assert_life's; the writer's row; the partitions' rows, shared and
-- ascending, against changes of partitions; then the new file ids, ascending.
-- Idempotent: yes. Cost: two inserts per file, a probe per partition of each chunk.
CREATE OR REPLACE FUNCTION decide_bulk_write(
    p_writer text, p_batch_id bigint, p_attempt uuid, p_chunks int, p_topics bigint[], p_counts int[],
    p_is_named boolean
)
RETURNS TABLE (outcome smallint, attempt uuid, next_chunk int, chunks int, partition_key bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_found    bulk_writes;
    v_keys     bigint[];
    v_topics   bigint[];
    v_unknown  bigint;
    v_files    bigint;
    v_claimed  bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(bulk_writer_lock(), hashtext(p_writer));
    SELECT * INTO v_found FROM bulk_writes w WHERE w.writer = p_writer FOR UPDATE;
    v_keys := array(SELECT DISTINCT unnest(run_key) AS key FROM bulk_write_chunks c WHERE c.attempt = p_attempt ORDER BY 1);
    v_topics := array(SELECT key >> 24 FROM unnest(v_keys) AS key UNION SELECT unnest(p_topics) ORDER BY 1);
    IF p_is_named AND v_found.batch_id = p_batch_id AND cardinality(v_found.topics) > 0
       AND NOT v_topics <@ v_found.topics THEN
        RETURN QUERY SELECT bulk_other_topic(), NULL::uuid, 0, 0,
                            (SELECT min(topic) << 24 FROM unnest(v_topics) AS topic WHERE topic <> ALL (v_found.topics));
        RETURN;
    END IF;
    IF v_found.batch_id >= p_batch_id THEN
        DELETE FROM bulk_write_chunks c WHERE c.attempt = p_attempt AND p_attempt <> v_found.attempt;
        RETURN QUERY SELECT bulk_decided(), v_found.attempt, v_found.next_chunk, v_found.chunks, NULL::bigint;
        RETURN;
    ELSIF v_found.next_chunk < v_found.chunks THEN
        RETURN QUERY SELECT bulk_previous_unfinished(), v_found.attempt, v_found.next_chunk, v_found.chunks, NULL::bigint;
        RETURN;
    ELSIF p_chunks <> (SELECT count(*) FROM bulk_write_chunks c WHERE c.attempt = p_attempt AND chunk < p_chunks) THEN
        RETURN QUERY SELECT bulk_not_staged(), NULL::uuid, 0, 0, NULL::bigint;
        RETURN;
    END IF;
    PERFORM FROM partitions p WHERE p.partition_key = ANY (v_keys) ORDER BY p.partition_key FOR SHARE;
    SELECT min(key) INTO v_unknown FROM unnest(v_keys) AS key
     WHERE NOT EXISTS (SELECT FROM partitions p WHERE p.partition_key = key);
    IF v_unknown IS NOT NULL THEN
        RETURN QUERY SELECT bulk_unknown_partition(), NULL::uuid, 0, 0, v_unknown;
        RETURN;
    END IF;
    SELECT min(key) INTO v_unknown FROM unnest(v_keys) AS key WHERE NOT takes_bulk_write(key, p_topics, p_counts);
    IF v_unknown IS NOT NULL THEN
        RETURN QUERY SELECT bulk_topic_changes(), NULL::uuid, 0, 0, v_unknown;
        RETURN;
    END IF;
    BEGIN
        SELECT coalesce(sum(cardinality(file_ids)), 0) INTO v_files
          FROM bulk_write_chunks c WHERE c.attempt = p_attempt;
        INSERT INTO segment_files (file_id, state, size, body_bytes, live_bytes, committed_at)
        SELECT id, file_staged(), size, bytes, 0, wall_time()
          FROM bulk_write_chunks c
         CROSS JOIN LATERAL unnest(file_ids, born_ms, until_ms, sizes, body_bytes) AS f (id, created, until, size, bytes)
         WHERE c.attempt = p_attempt AND wall_ms() BETWEEN created - 600000 AND until
           AND NOT EXISTS (SELECT FROM segment_files s WHERE s.file_id = id)
         ORDER BY id
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_claimed = ROW_COUNT;
        IF v_claimed < v_files THEN
            RAISE EXCEPTION 'files cannot be claimed' USING ERRCODE = 'HR003';
        END IF;
    EXCEPTION WHEN SQLSTATE 'HR003' THEN  -- the claimed ones are free again
        RETURN QUERY SELECT bulk_files_too_old(), NULL::uuid, 0, 0, NULL::bigint;
        RETURN;
    END;
    INSERT INTO decided_bulk_files (file_id)
    SELECT unnest(file_ids) AS id FROM bulk_write_chunks c WHERE c.attempt = p_attempt ORDER BY id
    ON CONFLICT DO NOTHING;
    INSERT INTO bulk_writes AS w (writer, batch_id, attempt, chunks, next_chunk, changed_at, topics)
    VALUES (p_writer, p_batch_id, p_attempt, p_chunks, 0, wall_time(), v_topics)
    ON CONFLICT (writer) DO UPDATE
       SET batch_id = excluded.batch_id, attempt = excluded.attempt, chunks = excluded.chunks, next_chunk = 0,
           changed_at = excluded.changed_at, topics = excluded.topics;
    RETURN QUERY SELECT bulk_decided(), p_attempt, 0, p_chunks, NULL::bigint;
END $$;

-- Whether a bulk write may be decided for a partition now: not while its topic is about to grow (announce_counts). With its topic's layout (p_topics, p_counts): if the count is
-- still that one, also in a parent or a child behind the boundary. Without: only if the partition is not a part of a change.
-- Locks: none; the caller holds the partition's row. Idempotent: reads only. Cost: a few index probes.
CREATE OR REPLACE FUNCTION takes_bulk_write(p_key bigint, p_topics bigint[], p_counts int[]) RETURNS boolean
LANGUAGE sql STABLE
SET enable_seqscan = off
AS $$
    SELECT EXISTS (
        SELECT FROM partitions p JOIN topics t USING (topic_id)
         WHERE p.partition_key = p_key
           AND NOT EXISTS (SELECT FROM announced_counts a
                            WHERE a.topic_id = p.topic_id AND a.announced_ms > wall_ms() - announced_ms_most())
           AND (cardinality(p_topics) = 0
                OR t.undeleted_partition_count = p_counts[array_position(p_topics, t.topic_number)])
           AND (p.state = state_takes_records()
                OR cardinality(p_topics) > 0 AND p.state IN (state_splits(), state_is_child())
                   AND EXISTS (SELECT FROM partition_splits s
                                WHERE p_key IN (s.parent_key, s.child_key) AND s.topic_id = p.topic_id
                                  AND s.boundary IS NOT NULL)))
$$;
