-- Forget the damage of an extent that is sound, or that was replaced.
-- Locks: the row. Idempotent: yes. Cost: one probe.
CREATE OR REPLACE FUNCTION clear_damage(p_file_id uuid, p_position bigint) RETURNS void
LANGUAGE sql VOLATILE AS $$
    DELETE FROM damaged_extents WHERE file_id = p_file_id AND position = p_position
$$;
