-- Whether a dead file may be what a damaged merged file was made of, so that its object is kept: it was live when the merged
-- file was begun, and became dead since. For a week after the damage was found; then only the damaged extent is left.
-- Locks: none. Idempotent: reads only. Cost: a scan of damaged_extents, which is empty in a sound cluster.
CREATE OR REPLACE FUNCTION held_for_repair(p_file segment_files) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (SELECT FROM damaged_extents d JOIN segment_files m ON m.file_id = d.file_id
                WHERE d.found_at > wall_time() - interval '7 days' AND m.level > 0 AND m.file_id <> p_file.file_id
                  AND p_file.committed_at <= m.committed_at AND p_file.dead_at >= m.committed_at);
