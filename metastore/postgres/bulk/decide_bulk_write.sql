-- Decide a batch of a writer: the chunks of p_attempt are the write, all of them or none. The first attempt at a batch
-- that gets here is the one; every later call for this batch, by any attempt, gets that attempt. An older batch than
-- the newest decided one was complete before.
-- Output: metastore.api.bulk.BulkOutcome; the decided attempt and its chunks; with UNKNOWN_PARTITION its key.
-- The files' ids are claimed here, under the unique key that the sweeper uses: a row in state `staged` from now on, so
-- the chunks can be committed at any later time. An id can be claimed until its term ends.
-- Locks: advisory (bulk_writer_lock(), hash of the writer), after assert_life's; the writer's row; then the new file ids, ascending.
-- Idempotent: yes. Cost: an insert per file, a probe per partition of each chunk.
CREATE OR REPLACE FUNCTION decide_bulk_write(p_writer text, p_batch_id bigint, p_attempt uuid, p_chunks int)
RETURNS TABLE (outcome smallint, attempt uuid, next_chunk int, chunks int, partition_key bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_found    bulk_writes;
    v_unknown  bigint;
    v_files    bigint;
    v_claimed  bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(bulk_writer_lock(), hashtext(p_writer));
    SELECT * INTO v_found FROM bulk_writes w WHERE w.writer = p_writer FOR UPDATE;
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
    SELECT min(key) INTO v_unknown
      FROM (SELECT DISTINCT unnest(run_key) AS key FROM bulk_write_chunks c WHERE c.attempt = p_attempt) AS k
     WHERE NOT EXISTS (SELECT FROM partitions p WHERE p.partition_key = key AND p.state = state_takes_records());
    IF v_unknown IS NOT NULL THEN
        RETURN QUERY SELECT bulk_unknown_partition(), NULL::uuid, 0, 0, v_unknown;
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
    INSERT INTO bulk_writes AS w (writer, batch_id, attempt, chunks, next_chunk, changed_at)
    VALUES (p_writer, p_batch_id, p_attempt, p_chunks, 0, wall_time())
    ON CONFLICT (writer) DO UPDATE
       SET batch_id = excluded.batch_id, attempt = excluded.attempt, chunks = excluded.chunks, next_chunk = 0,
           changed_at = excluded.changed_at;
    RETURN QUERY SELECT bulk_decided(), p_attempt, 0, p_chunks, NULL::bigint;
END $$;
