-- Extents of files that rebuild_files named, in a metastore that lost its rows. Of each partition they come in
-- offset order, call by call: the first decides the log start, the last the high watermark; gaps may be.
-- Locks: the partitions' rows, ascending; then their commit shards, ascending.
-- Idempotent: no; a partition's offsets that are taken fail the call. Cost: a few rows per extent.
CREATE OR REPLACE FUNCTION rebuild_extents(
    p_key bigint[], p_base bigint[], p_last bigint[], p_file uuid[], p_position bigint[], p_length bigint[],
    p_time bigint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_shards smallint := (SELECT commit_shards FROM cluster);
    v_full   bigint[];
BEGIN
    PERFORM FROM partitions WHERE partition_key = ANY (p_key) ORDER BY partition_key FOR NO KEY UPDATE;
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(p_key) AS key;
    UPDATE partitions p SET log_start_offset = e.base, extents_from = e.base
      FROM (SELECT key, min(base) AS base FROM unnest(p_key, p_base) AS e (key, base) GROUP BY key) AS e,
           partition_heads h
     WHERE p.partition_key = e.key AND h.partition_key = e.key AND h.high_watermark = 0;
    WITH entry AS (
        SELECT * FROM unnest(p_key, p_base, p_last, p_file, p_position, p_length, p_time)
                   AS e (key, base, last, file_id, position, length, time)
    ), appended AS (
        INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                             max_timestamp, appended_at)
        SELECT key, base, last, file_id, position, length, p.leader_epoch, time,
               CASE WHEN get_byte(uuid_send(file_id), 6) < 16 THEN record_time(position) END  -- a marker
          FROM entry JOIN partitions p ON p.partition_key = key
    ), moved AS (
        UPDATE partition_heads h
           SET high_watermark = e.last + 1, max_timestamp = greatest(h.max_timestamp, e.time),
               open_extents = h.open_extents + e.extents,
               open_max_timestamp = greatest(h.open_max_timestamp, e.time),
               appended_bytes = h.appended_bytes + e.bytes
          FROM (SELECT key, max(last) AS last, max(time) AS time, count(*) AS extents, sum(length) AS bytes
                  FROM entry GROUP BY key) AS e
         WHERE h.partition_key = e.key
        RETURNING h.partition_key, h.open_extents
    )
    SELECT array_agg(partition_key) INTO v_full FROM moved
     WHERE open_extents >= time_block_extents(partition_key);
    IF v_full IS NOT NULL THEN
        PERFORM close_time_blocks(v_full);
    END IF;
END $$;
