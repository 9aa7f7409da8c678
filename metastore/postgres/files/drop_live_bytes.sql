-- Subtract the bytes of removed extents from their files: what is still live in a file, and since when nothing is.
-- One element per file; a file that is not there any more is left out.
-- Locks: the files' rows, ascending by id; after partitions' rows. Idempotent: no, the caller removes an
-- extent once. Cost: one index probe and one HOT update per file; a second index entry when it becomes dead.
CREATE OR REPLACE FUNCTION drop_live_bytes(p_files uuid[], p_bytes bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    PERFORM FROM segment_files WHERE file_id = ANY (p_files) ORDER BY file_id FOR NO KEY UPDATE;
    UPDATE segment_files f
       SET live_bytes = f.live_bytes - u.bytes,
           dead_at = CASE WHEN f.live_bytes = u.bytes THEN wall_time() END
      FROM unnest(p_files, p_bytes) AS u (file_id, bytes)
     WHERE f.file_id = u.file_id;
END $$;
