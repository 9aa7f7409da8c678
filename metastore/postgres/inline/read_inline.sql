-- Byte ranges of inline files, in order: p_length bytes from p_start on, fewer where the file ends, all of it for 0; NULL
-- where there is no such file (any more).
-- Locks: none but the share of readers, which waits while a slot is emptied. Idempotent: reads only. Cost: an index probe per range, and the pages of the range.
CREATE OR REPLACE FUNCTION read_inline(p_file_id uuid[], p_start int[], p_length int[]) RETURNS TABLE (body bytea)
LANGUAGE plpgsql STABLE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT (SELECT CASE WHEN wanted.length = 0 THEN i.body
                        ELSE substring(i.body FROM wanted.start + 1 FOR wanted.length) END
              FROM inline_files i WHERE i.slot = inline_slot(wanted.id) AND i.file_id = wanted.id)
      FROM unnest(p_file_id, p_start, p_length) WITH ORDINALITY AS wanted (id, start, length, number)
     ORDER BY wanted.number;
END $$;
