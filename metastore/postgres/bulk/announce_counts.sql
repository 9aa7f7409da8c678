-- Announce that the counts of some topics grow, and commit one chunk of a decided bulk write that has records for them;
-- how many of its chunks and those of others are left. Until the counts have grown, or announced_ms_most() after the last
-- call, no bulk write is decided for the topics (takes_bulk_write). So the wait ends when what was decided is complete:
-- any process completes it, also while its driver works on it, or is gone.
-- Locks: the announcements' rows, ascending; the writer's row, skipping those that are locked; then as commit_bulk_chunk.
-- Idempotent: repeating continues. Cost: the chunks of unfinished writes; a chunk's commit if there is one.
CREATE OR REPLACE FUNCTION announce_counts(p_topic_ids uuid[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_write bulk_writes;
BEGIN
    INSERT INTO announced_counts (topic_id, announced_ms)
    SELECT topic_id, wall_ms() FROM unnest(p_topic_ids) AS topic_id ORDER BY 1
    ON CONFLICT (topic_id) DO UPDATE SET announced_ms = excluded.announced_ms;
    SELECT * INTO v_write FROM bulk_writes w
     WHERE w.next_chunk < w.chunks
       AND w.attempt IN (SELECT attempt FROM unfinished_bulk_chunks(p_topic_ids))
     ORDER BY w.changed_at LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        PERFORM commit_bulk_chunk(v_write.writer, v_write.attempt, v_write.next_chunk);
    END IF;
    RETURN (SELECT count(*) FROM unfinished_bulk_chunks(p_topic_ids));
END $$;

-- Forget announcements, of topics with new counts and those that are over.
-- Locks: their rows. Idempotent: yes. Cost: a row each.
CREATE OR REPLACE FUNCTION forget_announced_counts(p_topic_ids uuid[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    DELETE FROM announced_counts
     WHERE topic_id = ANY (p_topic_ids) OR announced_ms < wall_ms() - announced_ms_most()
$$;

-- Chunks of decided bulk writes that will append to some topics.
-- Locks: none. Idempotent: reads only. Cost: the chunks of unfinished writes.
CREATE OR REPLACE FUNCTION unfinished_bulk_chunks(p_topic_ids uuid[]) RETURNS TABLE (attempt uuid, chunk int)
LANGUAGE sql STABLE AS $$
    SELECT c.attempt, c.chunk FROM bulk_writes w JOIN bulk_write_chunks c USING (attempt)
     WHERE w.next_chunk < w.chunks AND c.chunk >= w.next_chunk
       AND EXISTS (SELECT FROM unnest(c.run_key) AS key JOIN topics t ON t.topic_number = key >> 24
                    WHERE t.topic_id = ANY (p_topic_ids))
$$;

-- Refuse the growth of topics while decided bulk writes will append to them: their records were placed by the old counts.
-- Locks: none; the caller holds the topics' partitions, so nothing is decided meanwhile. Idempotent: reads only.
-- Cost: as unfinished_bulk_chunks.
CREATE OR REPLACE FUNCTION assert_no_bulk_writes(p_topic_ids uuid[]) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT FROM unfinished_bulk_chunks(p_topic_ids)) THEN
        RAISE EXCEPTION 'decided bulk writes are not complete: topic_ids=%', p_topic_ids USING ERRCODE = 'HR005';
    END IF;
END $$;

-- How long an announcement holds if nothing grows, in ms.
-- Locks: none. Idempotent: pure. Cost: none.
CREATE OR REPLACE FUNCTION announced_ms_most() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 120000;
