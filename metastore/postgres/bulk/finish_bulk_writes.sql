-- Commit one chunk of a decided write that no driver continued for a minute; 0 if there is none. So a write is
-- complete a short time after its driver was killed, also if it is never run again.
-- Locks: the writer's row, skipping those that are locked; then as commit_bulk_chunk. Idempotent: repeating continues.
-- Cost: one index probe if there is none.
CREATE OR REPLACE FUNCTION finish_bulk_writes() RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_write bulk_writes;
BEGIN
    SELECT * INTO v_write FROM bulk_writes
     WHERE next_chunk < chunks AND changed_at < wall_time() - interval '1 minute'
     ORDER BY changed_at LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    PERFORM commit_bulk_chunk(v_write.writer, v_write.attempt, v_write.next_chunk);
    -- its next chunk has waited for as long
    UPDATE bulk_writes SET changed_at = v_write.changed_at WHERE writer = v_write.writer AND next_chunk < chunks;
    RETURN 1;
END $$;

-- Forget up to p_limit chunks that were staged over a day ago and were not decided, and complete writes of writers that
-- wrote nothing for 90 days; how many rows.
-- Locks: those rows, skipping those that are locked. Idempotent: repeating continues. Cost: O(pruned), and reads the
-- writers' rows.
CREATE OR REPLACE FUNCTION prune_bulk_writes(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_chunks  int;
    v_writes  int;
BEGIN
    DELETE FROM bulk_write_chunks
     WHERE (attempt, chunk) IN (SELECT c.attempt, c.chunk FROM bulk_write_chunks c
                                 WHERE c.staged_at < wall_time() - interval '1 day'
                                   AND NOT EXISTS (SELECT FROM bulk_writes w WHERE w.attempt = c.attempt)
                                 ORDER BY c.staged_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_chunks = ROW_COUNT;
    DELETE FROM bulk_writes
     WHERE writer IN (SELECT writer FROM bulk_writes
                       WHERE next_chunk = chunks AND changed_at < wall_time() - interval '90 days'
                       LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_writes = ROW_COUNT;
    RETURN v_chunks + v_writes;
END $$;
