-- Name files again from their footers, in a metastore that lost its rows: one extent per run, appended to
-- its partition in the order given. Offsets, and so the order between files, are the caller's guess.
-- p_entry_file is the file's number, from 1; entries stand in the order in which they are appended.
-- Locks: the partitions' commit shards, ascending; then the new file rows, ascending.
-- Idempotent: a file that is named is left out. Cost: a few rows per entry.
CREATE OR REPLACE FUNCTION rebuild_files(
    p_ids uuid[], p_births bigint[], p_sizes bigint[],
    p_entry_file int[], p_entry_key bigint[], p_entry_position bigint[], p_entry_length bigint[],
    p_entry_records bigint[], p_entry_time bigint[]
) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_shards smallint := (SELECT commit_shards FROM cluster);
    v_new    uuid[];
    v_full   bigint[];
BEGIN
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(p_entry_key) AS key;
    WITH named AS (
        INSERT INTO segment_files (file_id, state, size, body_bytes, live_bytes, committed_at)
        SELECT id, 0, size, bytes, bytes, to_timestamp(born_ms / 1000.0)
          FROM unnest(p_ids, p_births, p_sizes) WITH ORDINALITY AS f (id, born_ms, size, file)
         CROSS JOIN LATERAL (SELECT sum(length) AS bytes FROM unnest(p_entry_file, p_entry_length) AS e (of, length)
                              WHERE of = file) AS body
         WHERE bytes > 0
         ORDER BY id
        ON CONFLICT DO NOTHING
        RETURNING file_id
    )
    SELECT array_agg(file_id) INTO v_new FROM named;
    WITH entry AS (
        SELECT key, h.high_watermark + (sum(records) OVER (PARTITION BY key ORDER BY n) - records)::bigint AS base,
               records, p_ids[file] AS file_id, position, length, p.leader_epoch, time
          FROM unnest(p_entry_file, p_entry_key, p_entry_position, p_entry_length, p_entry_records, p_entry_time)
               WITH ORDINALITY AS e (file, key, position, length, records, time, n)
          JOIN partitions p ON p.partition_key = key
          JOIN partition_heads h ON h.partition_key = key
         WHERE p_ids[file] = ANY (v_new)
    ), appended AS (
        INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                             max_timestamp)
        SELECT key, base, base + records - 1, file_id, position, length, leader_epoch, time FROM entry
    ), moved AS (
        UPDATE partition_heads h
           SET high_watermark = e.last + 1, max_timestamp = greatest(h.max_timestamp, e.time),
               open_extents = h.open_extents + e.extents,
               open_max_timestamp = greatest(h.open_max_timestamp, e.time),
               appended_bytes = h.appended_bytes + e.bytes
          FROM (SELECT key, max(base + records - 1) AS last, max(time) AS time, count(*) AS extents,
                       sum(length) AS bytes
                  FROM entry GROUP BY key) AS e
         WHERE h.partition_key = e.key
        RETURNING h.partition_key, h.open_extents
    )
    SELECT array_agg(partition_key) INTO v_full FROM moved
     WHERE open_extents >= time_block_extents(partition_key);
    IF v_full IS NOT NULL THEN
        PERFORM close_time_blocks(v_full);
    END IF;
    RETURN coalesce(cardinality(v_new), 0);
END $$;
