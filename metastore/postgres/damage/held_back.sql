-- What compaction does not read because it is damaged, and since when that holds.

-- Whether an extent that was found damaged at this time is not read again yet: for a day.
-- Locks: none. Idempotent: reads only. Cost: none.
CREATE OR REPLACE FUNCTION is_held_back(p_checked_at timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT p_checked_at > wall_time() - interval '1 day'
$$;

-- How many bytes of a file's live extents are not read because they are damaged.
-- Locks: none. Idempotent: reads only. Cost: one probe, and one per damaged extent of the file.
CREATE OR REPLACE FUNCTION held_back_bytes(p_file_id uuid) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(e.length), 0)::bigint
      FROM damaged_extents d
      JOIN extents e ON e.partition_key = d.partition_key AND e.last_offset = d.last_offset
                    AND e.file_id = d.file_id AND e.position = d.position
     WHERE d.file_id = p_file_id AND is_held_back(d.checked_at)
$$;

-- Forget damage of extents that are not there any more: replaced, expired or deleted.
-- Locks: the rows. Idempotent: yes. Cost: one probe per damaged extent.
CREATE OR REPLACE FUNCTION forget_damage() RETURNS void
LANGUAGE sql VOLATILE AS $$
    DELETE FROM damaged_extents d
     WHERE NOT EXISTS (SELECT FROM extents e
                        WHERE e.partition_key = d.partition_key AND e.last_offset = d.last_offset
                          AND e.file_id = d.file_id AND e.position = d.position)
$$;
