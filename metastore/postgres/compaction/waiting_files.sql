-- The oldest live files of levels 0 and 1, and the next ones of level 2 after p_scan_from: up to p_limit of each.
-- Damaged extents that are held back (held_back.sql) count neither as bodies nor as live bytes: merging frees none of them.
-- A file that has nothing else is left out. So is, for ten minutes, a file that a compactor of the release before could not
-- read (mark_unreadable.sql).
-- Locks: none. Idempotent: reads only. Cost: O(p_limit), through segment_files_waiting; a probe of damaged_extents per file.
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
    v_marked  timestamptz := wall_time() - interval '10 minutes';
BEGIN
    RETURN QUERY
    SELECT f.file_id, l.level, f.body_bytes - f.held_back, f.live_bytes - f.held_back, v_now - to_ms(f.committed_at)
      FROM (VALUES (0::smallint, '00000000-0000-0000-0000-000000000000'::uuid),
                   (1::smallint, '00000000-0000-0000-0000-000000000000'::uuid),
                   (2::smallint, p_scan_from)) AS l (level, after)
     CROSS JOIN LATERAL (SELECT s.*, d.held_back FROM segment_files s
                         CROSS JOIN LATERAL (SELECT held_back_bytes(s.file_id) AS held_back) AS d
                          -- spelled so that only the one index gives this order, independent of statistics
                          WHERE s.state = file_live() AND s.dead_at IS NULL
                            AND (s.level, s.file_id) > (l.level, l.after) AND s.level <= l.level
                            AND coalesce(s.unreadable_at < v_marked, true)
                            AND (d.held_back = 0 OR d.held_back < s.live_bytes)
                          ORDER BY s.level, s.file_id LIMIT p_limit) AS f
     ORDER BY l.level, f.file_id;
END $$;
