-- Note damage that an agent met while it served a reader, or that a command found: as mark_damaged, without a lease, and with
-- the offsets that cannot be read. An extent that is not there any more is left out.
-- Locks: the files' rows, ascending, so that no file is dropped meanwhile; the rows of damaged_extents.
-- Idempotent: yes. Cost: a probe and an upsert per extent.
CREATE OR REPLACE FUNCTION note_damage(
    p_file_ids uuid[], p_positions bigint[], p_keys bigint[], p_last bigint[], p_kinds smallint[], p_why text[],
    p_first_damaged bigint[], p_last_damaged bigint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM FROM segment_files WHERE file_id = ANY (p_file_ids) ORDER BY file_id FOR NO KEY UPDATE;
    INSERT INTO damaged_extents AS d (file_id, position, length, partition_key, base_offset, last_offset, kind,
                                      found_at, checked_at, why, first_damaged, last_damaged)
    SELECT DISTINCT ON (e.file_id, e.position)
           e.file_id, e.position, e.length, e.partition_key, e.base_offset, e.last_offset, t.kind,
           wall_time(), wall_time(), t.why, t.first_damaged, t.last_damaged
      FROM unnest(p_file_ids, p_positions, p_keys, p_last, p_kinds, p_why, p_first_damaged, p_last_damaged)
           AS t (file_id, position, key, last, kind, why, first_damaged, last_damaged)
      JOIN extents e ON e.partition_key = t.key AND e.last_offset = t.last
                    AND e.file_id = t.file_id AND e.position = t.position
     ORDER BY e.file_id, e.position
    ON CONFLICT (file_id, position) DO UPDATE
       SET checked_at = excluded.checked_at, kind = excluded.kind, why = excluded.why, length = excluded.length,
           partition_key = excluded.partition_key, base_offset = excluded.base_offset,
           last_offset = excluded.last_offset, first_damaged = excluded.first_damaged,
           last_damaged = excluded.last_damaged;
END $$;
