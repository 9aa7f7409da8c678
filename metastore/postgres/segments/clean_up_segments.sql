-- The cleanup of keys that no worker and no deletion brings to their end.

-- Up to p_limit orphans get DELETE_STARTED: uploads without a lease, and uploads that a lost lease recorded as
-- finished. If a key with a higher epoch has released their reference, they are left to its tombstones. How many.
-- Locks: the job's row, shared; the keys' rows; the heads' rows, ascending. Idempotent: yes.
-- Cost: O(uploads under way and orphans), through remote_segments_due; no live or deleted segment is looked at.
CREATE OR REPLACE FUNCTION end_orphaned_segments(p_job_id bigint, p_epoch bigint, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_keys remote_segments[];
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    SELECT array_agg(k::remote_segments ORDER BY k.topic_id, k.partition_index, k.end_offset, k.epoch) INTO v_keys
      FROM (SELECT s.* FROM remote_segments s
             WHERE s.state IN (segment_copy_started(), segment_copy_finished()) AND s.due_at IS NOT NULL
               AND s.tombstoned_at IS NULL AND s.reference = reference_held() AND s.live_extents = 0
               AND NOT segment_is_leased(s)
             ORDER BY s.topic_id, s.partition_index, s.end_offset, s.epoch LIMIT p_limit FOR UPDATE) AS k;
    PERFORM record_keys(v_keys, segment_delete_started(), cause_orphaned(), p_job_id);
    RETURN coalesce(cardinality(v_keys), 0);
END $$;

-- Give reserved ids that no key names, over two hours after their reservation, to the janitor, but none that a lease
-- reserved for its tasks, as long as it holds. How many.
-- Locks: the job's row, shared; the reservations' rows; the files' rows, ascending. Idempotent: yes.
-- Cost: O(reserved ids).
CREATE OR REPLACE FUNCTION end_unused_reservations(p_job_id bigint, p_epoch bigint, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_ended int;
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM forget_reservations();
    WITH unused AS (
        SELECT file_id FROM segment_files f
         WHERE state = file_reserved() AND segments = 0 AND committed_at < wall_time() - interval '2 hours'
           AND NOT EXISTS (SELECT FROM file_reservations r WHERE r.file_id = f.file_id)
         ORDER BY file_id LIMIT p_limit FOR UPDATE
    )
    UPDATE segment_files f SET state = file_condemned(), dead_at = wall_time() FROM unused u WHERE f.file_id = u.file_id;
    GET DIAGNOSTICS v_ended = ROW_COUNT;
    RETURN v_ended;
END $$;

-- Remove up to p_limit tombstones that are p_age old, of keys and of partitions. How many.
-- Locks: the job's row, shared; the rows. Idempotent: yes. Cost: O(removed).
CREATE OR REPLACE FUNCTION remove_tombstones(p_job_id bigint, p_epoch bigint, p_age interval, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_before     timestamptz := wall_time() - p_age;
    v_keys       int;
    v_partitions int;
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    DELETE FROM remote_segments
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM remote_segments WHERE tombstoned_at < v_before
                              ORDER BY tombstoned_at LIMIT p_limit FOR UPDATE));
    GET DIAGNOSTICS v_keys = ROW_COUNT;
    DELETE FROM remote_partitions
     WHERE partition_key IN (SELECT partition_key FROM remote_partitions WHERE tombstoned_at < v_before
                              ORDER BY partition_key LIMIT p_limit FOR UPDATE);
    GET DIAGNOSTICS v_partitions = ROW_COUNT;
    RETURN v_keys + v_partitions;
END $$;

-- Remove what is older than p_age from the audit trail: of each metadata partition up to p_limit objects, or up to
-- p_limit rows if it has no objects (their records are older). How many records. Objects become due (due_audit.sql).
-- Locks: the job's row, shared; the objects' rows or the records; then the heads' rows, ascending. Idempotent: yes.
-- Cost: O(removed), and O(due objects).
CREATE OR REPLACE FUNCTION trim_audit(p_job_id bigint, p_epoch bigint, p_age interval, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_before   bigint := to_ms(wall_time() - p_age);
    v_archived int;
    v_removed  int;
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    WITH expired AS (
        SELECT h.metadata_partition AS part, max(a.last_offset) AS last
          FROM remote_log_heads h
         CROSS JOIN LATERAL (SELECT last_offset, newest_ms FROM archived_audit r
                              WHERE r.metadata_partition = h.metadata_partition AND r.due_at IS NULL
                              ORDER BY last_offset LIMIT p_limit) AS a
         WHERE a.newest_ms < v_before
         GROUP BY h.metadata_partition
    ), ended AS (
        UPDATE archived_audit a SET due_at = wall_time() FROM expired x
         WHERE a.metadata_partition = x.part AND a.last_offset <= x.last AND a.due_at IS NULL
        RETURNING a.metadata_partition AS part, a.last_offset, a.records
    ), counted AS (
        SELECT part, max(last_offset) + 1 AS start, sum(records) AS records FROM ended GROUP BY part ORDER BY part
    ), moved AS (
        UPDATE remote_log_heads h SET audit_start = greatest(h.audit_start, c.start) FROM counted c
         WHERE h.metadata_partition = c.part
        RETURNING c.records
    )
    SELECT coalesce(sum(records), 0) INTO v_archived FROM moved;
    WITH expired AS (
        SELECT h.metadata_partition AS part, max(e.audit_offset) AS last
          FROM remote_log_heads h
         CROSS JOIN LATERAL (SELECT audit_offset, event_ms FROM remote_segment_events r
                              WHERE r.metadata_partition = h.metadata_partition
                              ORDER BY audit_offset LIMIT p_limit) AS e
         WHERE e.event_ms < v_before
           AND NOT EXISTS (SELECT FROM archived_audit a
                            WHERE a.metadata_partition = h.metadata_partition AND a.due_at IS NULL)
         GROUP BY h.metadata_partition
    ), removed AS (
        DELETE FROM remote_segment_events r USING expired x
         WHERE r.metadata_partition = x.part AND r.audit_offset <= x.last
        RETURNING r.metadata_partition AS part, r.audit_offset
    ), counted AS (
        SELECT part, max(audit_offset) + 1 AS start, count(*) AS records FROM removed GROUP BY part ORDER BY part
    ), moved AS (
        UPDATE remote_log_heads h SET audit_start = greatest(h.audit_start, c.start) FROM counted c
         WHERE h.metadata_partition = c.part
        RETURNING c.records
    )
    SELECT coalesce(sum(records), 0) INTO v_removed FROM moved;
    RETURN v_archived + v_removed;
END $$;
