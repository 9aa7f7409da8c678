-- The next files by id, with everything that the metastore says of their bytes, of one snapshot.
-- Locks: none. Idempotent: reads only. Cost: O(files and extents returned).
CREATE OR REPLACE FUNCTION audit_files(p_after uuid, p_limit int)
RETURNS TABLE (file_id uuid, state smallint, level smallint, size bigint, live_bytes bigint, committed_ms bigint,
               dead_ms bigint, extents bytea)
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
    SELECT f.file_id, f.state, f.level, f.size, f.live_bytes, to_ms(f.committed_at), to_ms(f.dead_at),
           (SELECT coalesce(string_agg(pack_extent(e.partition_key, e.base_offset, e.last_offset, e.file_id,
                                                   e.position, e.length, e.leader_epoch, e.max_timestamp), ''
                                       ORDER BY e.position), '')
              FROM extents e WHERE e.file_id = f.file_id)
      FROM segment_files f
     WHERE f.file_id > p_after
     ORDER BY f.file_id LIMIT p_limit
$$;
