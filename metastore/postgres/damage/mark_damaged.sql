-- Note that a job could not read these extents: row i is the extent of p_keys[i] that ends at p_last[i], in the file
-- p_file_ids[i] at p_positions[i]. Those that are not there any more are left out. An extent that was known to be damaged
-- keeps the time at which it was found. Left out are inline files that have their bytes here, unless these are altered (kind
-- 0): a worker of the release before looks for them in the bucket, where they are missing, or refused.
-- Locks: the job's row, shared; the files' rows, ascending, so that no file is dropped meanwhile; the rows of damaged_extents.
-- Idempotent: yes. Cost: a probe and an upsert per extent.
CREATE OR REPLACE FUNCTION mark_damaged(
    p_job_id bigint, p_epoch bigint, p_file_ids uuid[], p_positions bigint[], p_keys bigint[], p_last bigint[],
    p_kinds smallint[], p_why text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM segment_files WHERE file_id = ANY (p_file_ids) ORDER BY file_id FOR NO KEY UPDATE;
    INSERT INTO damaged_extents AS d (file_id, position, length, partition_key, base_offset, last_offset, kind,
                                      found_at, checked_at, why)
    SELECT DISTINCT ON (e.file_id, e.position)
           e.file_id, e.position, e.length, e.partition_key, e.base_offset, e.last_offset, t.kind,
           wall_time(), wall_time(), t.why
      FROM unnest(p_file_ids, p_positions, p_keys, p_last, p_kinds, p_why) AS t (file_id, position, key, last, kind, why)
      JOIN extents e ON e.partition_key = t.key AND e.last_offset = t.last
                    AND e.file_id = t.file_id AND e.position = t.position
     WHERE t.kind = 0 OR NOT is_inline(e.file_id)
        OR NOT EXISTS (SELECT FROM inline_files i WHERE i.slot = inline_slot(e.file_id) AND i.file_id = e.file_id)
     ORDER BY e.file_id, e.position
    ON CONFLICT (file_id, position) DO UPDATE
       SET checked_at = excluded.checked_at, kind = excluded.kind, why = excluded.why, length = excluded.length,
           partition_key = excluded.partition_key, base_offset = excluded.base_offset,
           last_offset = excluded.last_offset;
END $$;
