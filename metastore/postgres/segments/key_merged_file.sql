-- Give one readable merged file without keys its keys: it is older than level 1 of remote.log.metadata.compaction, or of a
-- rebuilt index. Each run of its extents without a gap and of one leader epoch is a segment; its epoch is that of
-- the lease that does this, which is higher than any before. The number of its segments; 0 if there is no such file.
-- Locks: the job's row, shared; the partitions' rows, ascending; the file's row; the heads' rows, ascending.
-- Idempotent: yes. Cost: one update per extent, as start_segments and settle_uploads per segment.
CREATE OR REPLACE FUNCTION key_merged_file(p_job_id bigint, p_epoch bigint) RETURNS int
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_file    uuid;
    v_keys    bigint[];
    v_starts  bigint[];
    v_ends    bigint[];
    v_epochs  int[];
    v_times   bigint[];
    v_sizes   bigint[];
    v_extents int[];
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    IF segment_level() < 1 THEN
        RETURN 0;
    END IF;
    SELECT f.file_id INTO v_file FROM segment_files f
     WHERE f.level > 0 AND f.segments = 0 AND f.state = file_live() AND f.dead_at IS NULL
       AND EXISTS (SELECT FROM extents e JOIN partitions p USING (partition_key) WHERE e.file_id = f.file_id)
     ORDER BY f.file_id LIMIT 1;
    PERFORM FROM partitions WHERE partition_key IN (SELECT partition_key FROM extents WHERE file_id = v_file)
      ORDER BY partition_key FOR NO KEY UPDATE;
    PERFORM FROM segment_files WHERE file_id = v_file FOR NO KEY UPDATE;
    PERFORM lock_log_heads(array_agg(metadata_partition(topic_id, partition_index)))
       FROM partitions WHERE partition_key IN (SELECT partition_key FROM extents WHERE file_id = v_file);
    SELECT array_agg(r.key), array_agg(r.first), array_agg(r.last), array_agg(r.leader_epoch), array_agg(r.time),
           array_agg(r.bytes), array_agg(r.extents)
      INTO v_keys, v_starts, v_ends, v_epochs, v_times, v_sizes, v_extents
      FROM (SELECT partition_key AS key, min(base_offset) AS first, max(last_offset) AS last, leader_epoch,
                   max(max_timestamp) AS time, sum(length)::bigint AS bytes, count(*)::int AS extents
              FROM (SELECT e.*, sum(begins) OVER (PARTITION BY partition_key ORDER BY last_offset) AS run
                      FROM (SELECT x.*, CASE WHEN lag(last_offset) OVER w = base_offset - 1
                                              AND lag(x.leader_epoch) OVER w = x.leader_epoch THEN 0 ELSE 1 END AS begins
                              FROM extents x JOIN partitions p USING (partition_key)
                             WHERE x.file_id = v_file
                            WINDOW w AS (PARTITION BY partition_key ORDER BY last_offset)) AS e) AS runs
             GROUP BY partition_key, leader_epoch, run ORDER BY partition_key, run) AS r;
    IF v_keys IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM start_keys(p_job_id, p_epoch, v_file, (SELECT array_agg(gen_random_uuid()) FROM unnest(v_keys)), v_keys,
                       v_starts, v_ends, v_epochs, v_times, v_sizes, cause_keyed());
    UPDATE remote_segments s SET live_extents = k.extents
      FROM unnest(v_keys, v_ends, v_extents) AS k (key, end_offset, extents) JOIN partitions p ON p.partition_key = k.key
     WHERE s.topic_id = p.topic_id AND s.partition_index = p.partition_index AND s.end_offset = k.end_offset
       AND s.epoch = p_epoch;
    PERFORM record_segments(array_agg(p.topic_id), array_agg(p.partition_index), array_agg(k.end_offset),
                            array_agg(p_epoch::int), segment_copy_finished(), cause_keyed(), p_job_id)
       FROM unnest(v_keys, v_ends) AS k (key, end_offset) JOIN partitions p ON p.partition_key = k.key;
    UPDATE extents e SET segment_end = k.end_offset, segment_epoch = p_epoch
      FROM unnest(v_keys, v_starts, v_ends) AS k (key, first, end_offset)
     WHERE e.partition_key = k.key AND e.last_offset BETWEEN k.first AND k.end_offset AND e.file_id = v_file;
    RETURN cardinality(v_keys);
END $$;
