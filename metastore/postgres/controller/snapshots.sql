-- Snapshots of the metadata log, made outside; the two newest are kept, the log goes back to the older.

-- Keep a snapshot; false for a stale controller epoch.
-- The bytes are stored before the controller's row is locked: a renewal of the lease does not wait for them.
-- Locks: the snapshot's key, then controller (shared). Idempotent: by end offset. Cost: the snapshot's bytes.
CREATE OR REPLACE FUNCTION save_snapshot(p_controller_epoch bigint, p_end_offset bigint, p_data bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_is_new boolean;
BEGIN
    IF p_end_offset NOT BETWEEN 1 AND (SELECT next_offset FROM metadata_head) THEN
        RAISE EXCEPTION 'a snapshot of what is not in the log: end_offset=%', p_end_offset;
    END IF;
    INSERT INTO metadata_snapshots (end_offset, data, created_at) VALUES (p_end_offset, p_data, wall_time())
    ON CONFLICT DO NOTHING;
    v_is_new := FOUND;
    IF NOT is_controller(p_controller_epoch) THEN
        DELETE FROM metadata_snapshots WHERE end_offset = p_end_offset AND v_is_new;
        RETURN false;
    END IF;
    DELETE FROM metadata_snapshots
     WHERE end_offset NOT IN (SELECT end_offset FROM metadata_snapshots ORDER BY end_offset DESC LIMIT 2);
    RETURN true;
END $$;

-- Drop up to p_limit records that the older of two snapshots replaces, but for the last of them, by
-- which who starts there knows the log; how many. NULL for a stale controller epoch.
-- Locks: controller (shared). Idempotent: yes. Cost: one row per dropped record.
CREATE OR REPLACE FUNCTION truncate_metadata(p_controller_epoch bigint, p_limit bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_keep_from  bigint;
    v_dropped    bigint;
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    SELECT min(end_offset) - 1 INTO v_keep_from FROM metadata_snapshots HAVING count(*) >= 2;
    DELETE FROM metadata_log
     WHERE record_offset IN (SELECT record_offset FROM metadata_log
                              WHERE record_offset < v_keep_from ORDER BY record_offset LIMIT p_limit);
    GET DIAGNOSTICS v_dropped = ROW_COUNT;
    RETURN v_dropped;
END $$;
