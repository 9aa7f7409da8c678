-- What planners of the release before ask; this version's ask parts_in_files.sql.

-- Which of these partitions have an extent in one of the files: a merge may be replacing it.
-- Locks: none. Idempotent: reads only. Cost: up to one row per extent of the partitions.
CREATE OR REPLACE FUNCTION partitions_in_files(p_keys bigint[], p_file_ids uuid[]) RETURNS SETOF bigint
LANGUAGE sql STABLE AS $$
    SELECT key FROM unnest(p_keys) AS key
     WHERE EXISTS (SELECT FROM extents WHERE partition_key = key AND file_id = ANY (p_file_ids));
$$;

-- Of which of these partitions files of level 0 hold extents below p_ends[i]: (partition, file).
-- Locks: none. Idempotent: reads only. Cost: one or two probes per extent of the partitions.
CREATE OR REPLACE FUNCTION flushed_files(p_keys bigint[], p_ends bigint[])
RETURNS TABLE (partition_key bigint, file_id uuid)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT e.partition_key, e.file_id
      FROM unnest(p_keys, p_ends) AS t (key, wanted)
      JOIN extents e ON e.partition_key = t.key AND e.last_offset < t.wanted
      JOIN segment_files f ON f.file_id = e.file_id AND f.level = 0
     ORDER BY e.file_id;
$$;

-- The files that hold extents of these partitions.
-- Locks: none. Idempotent: reads only. Cost: one row per extent of the partitions.
CREATE OR REPLACE FUNCTION files_of_partitions(p_keys bigint[]) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT file_id FROM extents WHERE partition_key = ANY (p_keys);
$$;
