-- The oldest live files of levels 0 and 1, and the next ones of level 2 after p_scan_from: up to p_limit of each.
-- What a merge could not read is left out for a day.
-- Locks: none. Idempotent: reads only. Cost: O(p_limit), through segment_files_waiting.
CREATE OR REPLACE FUNCTION waiting_files(p_scan_from uuid, p_limit int)
RETURNS TABLE (id uuid, file_level smallint, body bigint, live bigint, age_ms bigint)
LANGUAGE plpgsql STABLE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now     bigint := wall_ms();
    v_day_ago timestamptz := wall_time() - interval '1 day';
BEGIN
    RETURN QUERY
    SELECT f.file_id, l.level, f.body_bytes, f.live_bytes, v_now - to_ms(f.committed_at)
      FROM (VALUES (0::smallint, '00000000-0000-0000-0000-000000000000'::uuid),
                   (1::smallint, '00000000-0000-0000-0000-000000000000'::uuid),
                   (2::smallint, p_scan_from)) AS l (level, after)
     CROSS JOIN LATERAL (SELECT * FROM segment_files s
                          -- spelled so that only the one index gives this order, independent of statistics
                          WHERE s.state = file_live() AND s.dead_at IS NULL
                            AND (s.level, s.file_id) > (l.level, l.after) AND s.level <= l.level
                            AND coalesce(s.unreadable_at < v_day_ago, true)
                          ORDER BY s.level, s.file_id LIMIT p_limit) AS f
     ORDER BY l.level, f.file_id;
END $$;
