-- The older part of the audit trail moves to the bucket (decisions/0073).

-- Replace the oldest rows of a metadata partition by the object that has their records, which is stored. False, and
-- nothing changes, unless the rows are exactly the oldest ones; and below metadata.format 4, as older agents read rows only.
-- Locks: the job's row, shared; the rows, ascending. Idempotent: yes. Cost: O(rows).
CREATE OR REPLACE FUNCTION archive_audit(
    p_job_id             bigint,
    p_epoch              bigint,
    p_metadata_partition int,
    p_first_offset       bigint,
    p_last_offset        bigint,
    p_records            int,
    p_newest_ms          bigint,
    p_size               int,
    p_index_size         int
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_first   bigint;
    v_last    bigint;
    v_records int;
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM archived_audit WHERE metadata_partition = p_metadata_partition AND last_offset >= p_first_offset;
    IF FOUND OR metadata_format() < 4 THEN  -- a repeated call, or rows of which another object has a part
        RETURN EXISTS (SELECT FROM archived_audit
                        WHERE metadata_partition = p_metadata_partition AND last_offset = p_last_offset
                          AND first_offset = p_first_offset AND epoch = p_epoch);
    END IF;
    SELECT min(audit_offset), max(audit_offset), count(*) INTO v_first, v_last, v_records
      FROM (SELECT audit_offset FROM remote_segment_events
             WHERE metadata_partition = p_metadata_partition AND audit_offset <= p_last_offset
             ORDER BY audit_offset FOR UPDATE) AS r;
    IF (v_first, v_last, v_records) IS DISTINCT FROM (p_first_offset, p_last_offset, p_records) THEN
        RETURN false;
    END IF;
    DELETE FROM remote_segment_events
     WHERE metadata_partition = p_metadata_partition AND audit_offset <= p_last_offset;
    INSERT INTO archived_audit (metadata_partition, last_offset, first_offset, records, newest_ms, bytes, index_bytes, epoch)
    VALUES (p_metadata_partition, p_last_offset, p_first_offset, p_records, p_newest_ms, p_size, p_index_size, p_epoch);
    RETURN true;
END $$;

-- Replace the rows of neighbouring objects, which become due, by that of one object, which is stored. False, and nothing
-- changes, unless the rows of the range are so many, have so many records, and none of them is due.
-- Locks: the job's row, shared; the rows, ascending. Idempotent: yes. Cost: O(objects).
CREATE OR REPLACE FUNCTION join_audit(
    p_job_id             bigint,
    p_epoch              bigint,
    p_metadata_partition int,
    p_first_offset       bigint,
    p_last_offset        bigint,
    p_records            int,
    p_newest_ms          bigint,
    p_size               int,
    p_index_size         int,
    p_objects            int
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_first   bigint;
    v_last    bigint;
    v_records bigint;
    v_objects int;
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    IF EXISTS (SELECT FROM archived_audit
                WHERE metadata_partition = p_metadata_partition AND last_offset = p_last_offset
                  AND first_offset = p_first_offset AND epoch = p_epoch) THEN
        RETURN true;
    END IF;
    SELECT min(first_offset), max(last_offset), sum(records), count(*) INTO v_first, v_last, v_records, v_objects
      FROM (SELECT * FROM archived_audit
             WHERE metadata_partition = p_metadata_partition AND last_offset BETWEEN p_first_offset AND p_last_offset
               AND due_at IS NULL
             ORDER BY last_offset FOR UPDATE) AS r;
    IF (v_first, v_last, v_records, v_objects)
       IS DISTINCT FROM (p_first_offset, p_last_offset, p_records::bigint, p_objects) THEN
        RETURN false;
    END IF;
    UPDATE archived_audit SET due_at = wall_time()
     WHERE metadata_partition = p_metadata_partition AND last_offset BETWEEN p_first_offset AND p_last_offset
       AND due_at IS NULL;
    INSERT INTO archived_audit (metadata_partition, last_offset, first_offset, records, newest_ms, bytes, index_bytes, epoch)
    VALUES (p_metadata_partition, p_last_offset, p_first_offset, p_records, p_newest_ms, p_size, p_index_size, p_epoch);
    RETURN true;
END $$;

-- Forget due objects after they were deleted.
-- Locks: the job's row, shared; the rows. Idempotent: yes. Cost: one index probe per row.
CREATE OR REPLACE FUNCTION drop_audit(
    p_job_id bigint, p_epoch bigint, p_incarnation_id uuid, p_partitions int[], p_first_offsets bigint[], p_last_offsets bigint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_janitor(p_job_id, p_epoch, p_incarnation_id);
    DELETE FROM archived_audit a USING unnest(p_partitions, p_first_offsets, p_last_offsets) AS t (part, first, last)
     WHERE a.metadata_partition = t.part AND a.last_offset = t.last AND a.first_offset = t.first AND a.due_at IS NOT NULL;
END $$;
