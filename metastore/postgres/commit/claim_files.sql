-- Make new file ids the caller's, and say which ones: commit and sweeper insert under this same
-- unique key, and the first to insert decides what happens to the file.
-- A creation time over an hour ago (its answer may be gone, so it would look like a new file) or more
-- than ten minutes ahead (a wrong clock) is left out.
-- An id that has a row is looked up, not inserted: ON CONFLICT would wait for a transaction that changes the row, a swap
-- or a log start that holds it and waits for our shard, when a commit comes again.
-- Locks: the new rows, ascending; the caller holds its shards' locks already.
-- Idempotent: an id is claimed once. Cost: one probe and one insert per file.
CREATE OR REPLACE FUNCTION claim_files(p_ids uuid[], p_births bigint[], p_sizes bigint[], p_live_bytes bigint[])
RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_claimed uuid[];
BEGIN
    WITH claimed AS (
        INSERT INTO segment_files (file_id, state, size, body_bytes, live_bytes, committed_at, dead_at)
        SELECT id, file_live(), size, live_bytes, live_bytes, wall_time(),
               CASE WHEN live_bytes = 0 THEN wall_time() END
          FROM unnest(p_ids, p_births, p_sizes, p_live_bytes) AS f (id, born_ms, size, live_bytes)
         WHERE birth_accepted(born_ms) AND NOT EXISTS (SELECT FROM segment_files WHERE file_id = id)
         ORDER BY id
        ON CONFLICT DO NOTHING
        RETURNING file_id
    )
    SELECT array_agg(file_id) INTO v_claimed FROM claimed;
    RETURN v_claimed;
END $$;

CREATE OR REPLACE FUNCTION birth_accepted(p_born_ms bigint) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN p_born_ms BETWEEN wall_ms() - 3600000 AND wall_ms() + 600000;

-- The answer for a file that could not be claimed. A committed file is acknowledged to any caller.
-- Locks: none. Idempotent: changes nothing; the answer waits for the standbys. Cost: two index probes.
CREATE OR REPLACE FUNCTION settled_file(p_id uuid, p_born_ms bigint, p_fenced boolean)
RETURNS TABLE (status smallint, answer bytea)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT commit_committed(), a.answer FROM commit_answers a
                  WHERE a.slot = answer_slot(p_born_ms) AND a.file_id = p_id;
    IF FOUND THEN
        PERFORM await_standbys();
        RETURN;
    END IF;
    PERFORM FROM segment_files WHERE file_id = p_id AND state = file_condemned();
    RETURN QUERY SELECT CASE WHEN p_fenced THEN commit_agent_fenced()
                             WHEN FOUND AND birth_accepted(p_born_ms) THEN commit_condemned()
                             ELSE commit_too_old() END, ''::bytea;
END $$;
