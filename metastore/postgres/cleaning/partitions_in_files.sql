-- Which of these partitions have an extent in one of the files: a merge may be replacing it.
-- Locks: none. Idempotent: reads only. Cost: up to one row per extent of the partitions.
CREATE OR REPLACE FUNCTION partitions_in_files(p_keys bigint[], p_file_ids uuid[]) RETURNS SETOF bigint
LANGUAGE sql STABLE AS $$
    SELECT key FROM unnest(p_keys) AS key
     WHERE EXISTS (SELECT FROM extents WHERE partition_key = key AND file_id = ANY (p_file_ids));
$$;

-- The files that hold extents of these partitions.
-- Locks: none. Idempotent: reads only. Cost: one row per extent of the partitions.
CREATE OR REPLACE FUNCTION files_of_partitions(p_keys bigint[]) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT file_id FROM extents WHERE partition_key = ANY (p_keys);
$$;
