-- What holds for the lifecycle of segments as a whole.

-- The active level of the feature remote.log.metadata.compaction. At 0 no keys are written: clusters of the release before
-- begin there. The next release needs level 1 (docs/operate/UPGRADES.md). Then this function goes, and with it the answers
-- start_keyless() and "false" of reserve_files, the new rows in swap_extents, and their callers' paths (compactor/take_over.py,
-- compactor/spark/reserved.py). Merged files without keys stay readable, and key_merged_file gives them keys.
-- Locks: none. Idempotent: reads only. Cost: one row.
CREATE OR REPLACE FUNCTION segment_level() RETURNS int
LANGUAGE sql STABLE
RETURN coalesce((SELECT max_level FROM features WHERE name = 'remote.log.metadata.compaction'), 0);

-- Whether a key in one state may be recorded in another; p_from NULL: there is no key. STARTED again is another attempt
-- under another uuid. metastore/segment_logs has the same table.
-- Locks: none. Idempotent: pure. Cost: none.
CREATE OR REPLACE FUNCTION segment_may_become(p_from int, p_to int) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_from IS NULL THEN p_to IN (segment_copy_started(), segment_delete_started())
            WHEN p_from = segment_copy_started()
            THEN p_to IN (segment_copy_started(), segment_copy_finished(), segment_delete_started())
            WHEN p_from = segment_copy_finished() THEN p_to = segment_delete_started()
            WHEN p_from = segment_delete_started() THEN p_to = segment_delete_finished()
            ELSE false END;

-- Refuse a record by name: nothing of the statement happens.
-- Locks: none. Idempotent: pure. Cost: none.
CREATE OR REPLACE FUNCTION segment_refused(p_segment remote_segments, p_to int) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'illegal transition of a remote segment: topic_id=% partition=% end_offset=% epoch=% from=% to=%',
        p_segment.topic_id, p_segment.partition_index, p_segment.end_offset, p_segment.epoch, p_segment.state, p_to;
END $$;

-- The broker id of records that a job causes: of the agent in its holder's process; -1 for a process without an agent,
-- and without a job.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION job_broker(p_job_id bigint) RETURNS int
LANGUAGE sql STABLE
RETURN coalesce((SELECT broker_id FROM jobs WHERE job_id = p_job_id), -1);

-- Whether an upload may still be under way: the lease that started it holds.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION segment_is_leased(p_segment remote_segments) RETURNS boolean
LANGUAGE sql STABLE
RETURN p_segment.state = segment_copy_started()
       AND EXISTS (SELECT FROM jobs WHERE job_id = p_segment.job_id AND epoch = p_segment.epoch AND state = job_leased());
