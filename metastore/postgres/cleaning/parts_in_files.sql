-- Where merges and passes of cleaning by key could meet: only below the end of a pass. What a busy partition gets
-- meanwhile is behind it.

-- Which of these partitions have an extent below p_ends[i] in one of the files: a merge may be replacing it.
-- Locks: none. Idempotent: reads only. Cost: one row per extent below the ends, at most.
CREATE OR REPLACE FUNCTION parts_in_files(p_keys bigint[], p_ends bigint[], p_file_ids uuid[]) RETURNS SETOF bigint
LANGUAGE sql STABLE AS $$
    SELECT key FROM unnest(p_keys, p_ends) AS t (key, wanted)
     WHERE EXISTS (SELECT FROM extents
                    WHERE partition_key = key AND last_offset < wanted AND file_id = ANY (p_file_ids));
$$;

-- The files that hold extents of these partitions below p_ends[i].
-- Locks: none. Idempotent: reads only. Cost: one row per extent below the ends.
CREATE OR REPLACE FUNCTION files_of_parts(p_keys bigint[], p_ends bigint[]) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT file_id FROM unnest(p_keys, p_ends) AS t (key, wanted)
      JOIN extents ON partition_key = key AND last_offset < wanted;
$$;

-- Of which of these partitions files of level 0 hold extents below p_ends[i]: (partition, file, the first offset there,
-- whether an extent of the partition in this file is held back as damaged, for planners of the release before).
-- Locks: none. Idempotent: reads only. Cost: two or three probes per extent below the ends.
CREATE OR REPLACE FUNCTION flushed_files_of_parts(p_keys bigint[], p_ends bigint[])
RETURNS TABLE (partition_key bigint, file_id uuid, first_offset bigint, is_unreadable boolean)
LANGUAGE sql STABLE AS $$
    SELECT e.partition_key, e.file_id, min(e.base_offset),
           coalesce(bool_or(is_held_back(d.checked_at)), false)
      FROM unnest(p_keys, p_ends) AS t (key, wanted)
      JOIN extents e ON e.partition_key = t.key AND e.last_offset < t.wanted
      JOIN segment_files f ON f.file_id = e.file_id AND f.level = 0
      LEFT JOIN damaged_extents d ON d.file_id = e.file_id AND d.position = e.position
     GROUP BY e.partition_key, e.file_id
     ORDER BY e.file_id;
$$;
