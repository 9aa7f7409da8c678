-- Which files' objects may be deleted now: dead for the cluster's file.delete.delay.ms (none while it
-- has no value) and since before any read pin, and all files that an earlier call took or the sweeper condemned and that are not dropped yet. From then on a dead file
-- is `deleting`: it never becomes live again, so its object may be deleted late, twice, or by a worker that crashed.
-- A file with keys is `deleting` once the last of their references is released, which waits for the same (release_segments.sql).
-- No file that an extent names is given, even if its counters say that it is dead: extents are probed, here and under the file's lock.
-- None is younger than settled_age(): its row could go at once. Files that the store refused to delete are
-- left out until their time (set_aside_files.sql). So are those that may repair a damaged file (held_for_repair.sql).
--
-- Locks: the job's row, shared; the files' rows, ascending. Idempotent: what was taken is given again.
-- Cost: O(result), plus the dead files that only a read pin or known damage keeps, or that are younger than settled_age().
CREATE OR REPLACE FUNCTION take_dead_files(
    p_job_id bigint, p_epoch bigint, p_incarnation_id uuid, p_limit int
) RETURNS TABLE (file_id uuid, size bigint, condemned boolean)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_delay   interval := cluster_interval('file.delete.delay.ms');
    v_settled timestamptz;
    v_horizon timestamptz;  -- NULL: nothing is due
    v_ids     uuid[];
BEGIN
    PERFORM assert_janitor(p_job_id, p_epoch, p_incarnation_id);
    v_settled := wall_time() - settled_age();
    v_horizon := CASE WHEN v_delay IS NOT NULL THEN least(wall_time() - v_delay, read_horizon(p_job_id)) END;
    SELECT array_agg(id) INTO v_ids
      FROM ((SELECT f.file_id AS id FROM segment_files f
              WHERE f.state IN (file_condemned(), file_deleting()) AND f.committed_at < v_settled
                AND coalesce(f.dead_at, '-infinity') <= wall_time()
                AND NOT EXISTS (SELECT FROM extents e WHERE e.file_id = f.file_id)
              ORDER BY f.dead_at LIMIT p_limit)
            UNION
            (SELECT f.file_id FROM segment_files f
              WHERE f.state = file_live() AND f.dead_at < v_horizon AND f.committed_at < v_settled
                AND f.segments = 0 AND NOT EXISTS (SELECT FROM extents e WHERE e.file_id = f.file_id)
                AND NOT held_for_repair(f)
              ORDER BY f.dead_at LIMIT p_limit)
            LIMIT p_limit) AS found (id);
    PERFORM FROM segment_files f WHERE f.file_id = ANY (v_ids) ORDER BY f.file_id FOR UPDATE;
    UPDATE segment_files f SET state = file_deleting()
     WHERE f.file_id = ANY (v_ids) AND f.state = file_live() AND f.live_bytes = 0 AND f.dead_at IS NOT NULL
       AND f.segments = 0 AND NOT EXISTS (SELECT FROM extents e WHERE e.file_id = f.file_id);
    RETURN QUERY SELECT f.file_id, f.size, f.state = file_condemned() FROM segment_files f
                  WHERE f.file_id = ANY (v_ids) AND f.state IN (file_condemned(), file_deleting()) ORDER BY f.file_id;
END $$;

-- How long a row is kept after its commit: an id is accepted up to 10 minutes before its birth and up to an
-- hour after it, and its answer is kept that long (claim_files.sql); five more as a margin.
-- Locks: none. Idempotent: pure. Cost: none.
CREATE OR REPLACE FUNCTION settled_age() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN interval '75 minutes';

-- The fence of every deletion: the lease of its job, in this life of the metastore.
-- Locks: the job's row, shared. Idempotent: reads only. Cost: two index probes.
CREATE OR REPLACE FUNCTION assert_janitor(p_job_id bigint, p_epoch bigint, p_incarnation_id uuid) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM cluster WHERE incarnation_id = p_incarnation_id;
    IF NOT FOUND THEN
        PERFORM job_is_lost(p_job_id, p_epoch);
    END IF;
END $$;
