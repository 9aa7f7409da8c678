-- Commit the next chunk of a decided write: order its runs after what their partitions hold, and make them readable.
-- It does to the tables what commit_files does for batches without a producer (tests/metastore/test_bulk_commit.py
-- compares them). Both have the statement that appends, numbers and announces runs: as a function of both, which takes
-- runs in arrays, it cost a commit 4 to 11 % more CPU of Postgres.
-- A partition that was deleted since the write was decided loses its runs, as if it was deleted after the write. In a
-- parent that splits, its keys may be some that moved: its boundary waits as after an agent's batch.
-- Output: the next chunk and the number of chunks; no row if the writer has another attempt by now: then this one was
-- complete. A chunk that is not the next one was committed: nothing happens.
--
-- Locks: the writer's row; then as commit_files: the commit shards of the partitions, ascending; the files' rows.
-- Idempotent: the writer's row says which chunk is next, in the same transaction.
-- Cost: a few index probes per file, run and partition of the chunk.
CREATE OR REPLACE FUNCTION commit_bulk_chunk(p_writer text, p_attempt uuid, p_chunk int)
RETURNS TABLE (next_chunk int, chunks int)
LANGUAGE plpgsql VOLATILE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_shards  smallint := (SELECT commit_shards FROM cluster);
    v_write   bulk_writes;
    v_chunk   bulk_write_chunks;
    v_full    bigint[];   -- partitions with an open time block that is now full
BEGIN
    SELECT * INTO v_write FROM bulk_writes w WHERE w.writer = p_writer AND w.attempt = p_attempt FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM await_standbys();
        RETURN;
    ELSIF v_write.next_chunk <> p_chunk OR p_chunk = v_write.chunks THEN
        RETURN QUERY SELECT v_write.next_chunk, v_write.chunks;
        RETURN;
    END IF;
    SELECT * INTO STRICT v_chunk FROM bulk_write_chunks c WHERE c.attempt = p_attempt AND c.chunk = p_chunk;
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(v_chunk.run_key) AS key;

    -- What readers see: files, extents, the feed, heads.
    WITH head AS MATERIALIZED (
        SELECT p.partition_key AS key, p.leader_epoch, h.row, h.high_watermark
          FROM (SELECT DISTINCT key FROM unnest(v_chunk.run_key) AS key) AS k
          JOIN partitions p ON p.partition_key = key
         CROSS JOIN LATERAL (SELECT ctid AS row, high_watermark FROM partition_heads WHERE partition_key = key
                              ORDER BY update_block DESC LIMIT 1) AS h
    ), run AS MATERIALIZED (
        SELECT h.key, h.row, h.leader_epoch, v_chunk.file_ids[file] AS file_id, position, length, time,
               h.high_watermark + (sum(records) OVER before)::bigint - records AS base,
               h.high_watermark + (sum(records) OVER before)::bigint - 1 AS last
          FROM unnest(v_chunk.run_file, v_chunk.run_key, v_chunk.run_position, v_chunk.run_length,
                      v_chunk.run_records, v_chunk.run_time)
               WITH ORDINALITY AS r (file, key, position, length, records, time, number)
          JOIN head h ON h.key = r.key
        WINDOW before AS (PARTITION BY h.key ORDER BY number ROWS UNBOUNDED PRECEDING)
    ), live AS (
        UPDATE segment_files f
           SET state = file_live(), committed_at = wall_time(), live_bytes = b.bytes,
               dead_at = CASE WHEN b.bytes = 0 THEN wall_time() END
          FROM (SELECT id, coalesce(sum(length), 0) AS bytes
                  FROM unnest(v_chunk.file_ids) AS id LEFT JOIN run ON run.file_id = id GROUP BY id) AS b
         WHERE f.file_id = b.id
    ), appended AS (
        INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                             max_timestamp)
        SELECT key, base, last, file_id, position, length, leader_epoch, time FROM run
    ), numbered AS (
        UPDATE commit_shards c SET seq = c.seq + 1, seq_block = update_block(c.seq + 1)
          FROM (SELECT commit_shard(key, v_shards) AS shard,
                       string_agg(pack_extent(key, base, last, file_id, position, length, leader_epoch, time), ''
                                  ORDER BY key, base) AS payload
                  FROM run GROUP BY 1) AS r
         CROSS JOIN LATERAL (SELECT ctid AS row FROM commit_shards WHERE shard = r.shard
                              ORDER BY seq_block DESC LIMIT 1) AS newest
         WHERE c.ctid = newest.row
        RETURNING c.shard, c.seq, r.payload
    ), announced AS (
        INSERT INTO commit_log (slot, shard, seq, kind, payload)
        SELECT feed_slot(), shard, seq, feed_commit(), payload FROM numbered
    ), moved AS (
        UPDATE partition_heads h
           SET high_watermark = r.last + 1,
               max_timestamp = greatest(h.max_timestamp, r.time),
               open_extents = h.open_extents + r.extents,
               open_max_timestamp = greatest(h.open_max_timestamp, r.time),
               appended_bytes = h.appended_bytes + r.bytes,
               updates = h.updates + 1, update_block = update_block(h.updates + 1)
          FROM (SELECT row, max(last) AS last, max(time) AS time, count(*) AS extents, sum(length) AS bytes
                  FROM run GROUP BY row) AS r
         WHERE h.ctid = r.row
        RETURNING h.partition_key, h.open_extents
    )
    SELECT array_agg(partition_key) INTO v_full FROM moved
     WHERE open_extents >= time_block_extents(partition_key);
    IF v_full IS NOT NULL THEN
        PERFORM close_time_blocks(v_full);
    END IF;

    UPDATE partition_splits s SET last_moved_ms = greatest(s.last_moved_ms, wall_ms())
     WHERE s.boundary IS NULL AND s.parent_key = ANY (v_chunk.run_key);
    DELETE FROM bulk_write_chunks c WHERE c.attempt = p_attempt AND c.chunk = p_chunk;
    UPDATE bulk_writes w SET next_chunk = p_chunk + 1, changed_at = wall_time() WHERE w.writer = p_writer;
    RETURN QUERY SELECT p_chunk + 1, v_write.chunks;
END $$;
