-- Put removed extents back, in parallel arrays; false, and nothing happened, if one of their files may be deleted already, or
-- is inline and its slot was emptied: nothing of it was live.
-- Their files get the live bytes back, and are dead no more: the janitor takes no file that an extent names, and looks
-- under the file's lock. Those of a deleted topic have their segments' keys still. Those below a log start come back without
-- a key, which has ended: key_merged_file gives them new ones when the file has lost its last one.
-- Locks: the files' rows, ascending; the caller holds the partitions' rows, or those of their deleted topic.
-- Idempotent: no, what is back is in removed_extents no more. Cost: two writes per extent, one per file.
CREATE OR REPLACE FUNCTION revive_extents(p_keys bigint[], p_last_offsets bigint[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_files uuid[];
    v_bytes bigint[];
BEGIN
    SELECT array_agg(file_id), array_agg(bytes) INTO v_files, v_bytes
      FROM (SELECT r.file_id, sum(r.length)::bigint AS bytes
              FROM unnest(p_keys, p_last_offsets) AS k (key, last_offset)
              JOIN removed_extents r ON r.partition_key = k.key AND r.last_offset = k.last_offset
             WHERE NOT is_marker_id(r.file_id)
             GROUP BY r.file_id) AS f;
    PERFORM FROM segment_files WHERE file_id = ANY (v_files) ORDER BY file_id FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM unnest(v_files) AS wanted
                WHERE NOT EXISTS (SELECT FROM segment_files f WHERE f.file_id = wanted AND f.state = file_live())
                   OR is_inline(wanted) AND NOT EXISTS (SELECT FROM inline_files i
                                                         WHERE i.slot = inline_slot(wanted) AND i.file_id = wanted)) THEN
        RETURN false;
    END IF;
    UPDATE segment_files f SET live_bytes = f.live_bytes + u.bytes, dead_at = NULL
      FROM unnest(v_files, v_bytes) AS u (file_id, bytes)
     WHERE f.file_id = u.file_id;
    WITH back AS (
        DELETE FROM removed_extents r USING unnest(p_keys, p_last_offsets) AS k (key, last_offset)
         WHERE r.partition_key = k.key AND r.last_offset = k.last_offset
        RETURNING r.*
    )
    INSERT INTO extents (partition_key, last_offset, base_offset, file_id, position, length, leader_epoch,
                         max_timestamp, appended_at, segment_end, segment_epoch)
    SELECT partition_key, last_offset, base_offset, file_id, position, length, leader_epoch, max_timestamp, appended_at,
           segment_end, segment_epoch
      FROM back;
    RETURN true;
END $$;

-- Whether an extent's file id is what the marker of a transaction says (metastore/transaction_markers.py): no file has it.
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION is_marker_id(p_file_id uuid) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN get_byte(uuid_send(p_file_id), 6) < 16;
