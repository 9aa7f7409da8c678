-- File ids that a lease reserves before it knows the segments of its files: tasks of Spark store under them.

-- Reserve file ids for a lease. False, and nothing happened, below level 1 of remote.log.metadata.compaction: files have
-- no keys (segment_level says when this goes). An id that was used before stays what it is, and start_reserved_segments refuses it.
-- Locks: the job's row, shared. Idempotent: yes. Cost: two inserts per id.
CREATE OR REPLACE FUNCTION reserve_files(p_job_id bigint, p_epoch bigint, p_level smallint, p_files uuid[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    IF segment_level() < 1 THEN
        RETURN false;
    END IF;
    WITH reserved AS (
        INSERT INTO segment_files (file_id, state, level, size, body_bytes, live_bytes, committed_at, segments)
        SELECT file_id, file_reserved(), p_level, 0, 0, 0, wall_time(), 0 FROM unnest(p_files) AS f (file_id)
         ORDER BY file_id
        ON CONFLICT DO NOTHING
        RETURNING file_id
    )
    INSERT INTO file_reservations (file_id, job_id, epoch) SELECT file_id, p_job_id, p_epoch FROM reserved;
    RETURN true;
END $$;

-- start_segments for a file that may be stored already: its id must be one that this lease reserved with reserve_files.
-- Locks, idempotence, cost: as start_segments.
CREATE OR REPLACE FUNCTION start_reserved_segments(
    p_job_id bigint, p_epoch bigint, p_file_id uuid, p_level smallint,
    p_segment uuid[], p_key bigint[], p_start bigint[], p_end bigint[], p_leader_epoch int[], p_time bigint[],
    p_size bigint[]
) RETURNS smallint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    IF segment_level() >= 1 AND NOT EXISTS (SELECT FROM file_reservations
                                             WHERE file_id = p_file_id AND job_id = p_job_id AND epoch = p_epoch) THEN
        PERFORM assert_job(p_job_id, p_epoch);
        RETURN start_refused();
    END IF;
    RETURN start_segments(p_job_id, p_epoch, p_file_id, 0, p_level, p_segment, p_key, p_start, p_end, p_leader_epoch,
                          p_time, p_size);
END $$;

-- Forget the lease of reservations once it is over: what no key names is unused then.
-- Locks: the rows. Idempotent: yes. Cost: O(reservations).
CREATE OR REPLACE FUNCTION forget_reservations() RETURNS void
LANGUAGE sql VOLATILE AS $$
    DELETE FROM file_reservations r
     WHERE NOT EXISTS (SELECT FROM jobs j WHERE j.job_id = r.job_id AND j.epoch = r.epoch AND j.state = job_leased())
$$;
