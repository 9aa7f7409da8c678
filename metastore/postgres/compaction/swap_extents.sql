-- Let a merged file take over: new extents in the place of those that they were made of.
--
-- Input: the file (born_ms as its id carries it); the swaps as p_key .. p_time, one element each; and
-- their inputs, any number per swap: p_input_swap is the swap's number from 1, p_input_last and
-- p_input_file what must be there. Output: metastore.api.compaction.SwapOutcome per swap; NULL, and
-- nothing happened, when the file's id cannot be used: condemned, deleted, or not reserved for this lease and these
-- offsets (start_segments.sql). Below level 1 of remote.log.metadata.compaction a file that is not reserved
-- gets its row here, unless its id is over an hour old, and has no keys (segment_level says when this goes).
--
-- A call has all swaps of its segments. In the same transaction a segment gets COPY_FINISHED, or DELETE_STARTED if all of
-- its swaps are lost, and each segment that lost its last extent DELETE_STARTED.
--
-- The inputs of a swap cover its offsets without a gap, or the call fails: it would hide records, or make them twice.
-- A swap is done only if each of its inputs is still there. A log start, deletion or another job may remove one at any
-- time: that swap is lost, its neighbours are not. A merge does not join extents at the cleaned offset of a partition, which
-- may have moved there since its plan was made. Nor is a swap done for a segment that an earlier call has settled: the
-- call has answered already, and the segment may have ended.
-- While the lease holds, a repeated call gets its first answer (swap_answers.sql); later ones are refused as fenced.
-- A new extent is as old as the newest thing in its inputs (appended_at): a merge expires nothing, and
-- keeps nothing for longer. One without a record, left by the cleaning by key, is as old as the records that it had.
-- The file is dead until something in it is live: a job that stops before or between two calls leaves nothing that
-- cleanup and janitor do not find.
--
-- Locks: the job's row, shared; the partitions' rows, ascending; the files' rows, ascending (the new one
-- before them if it is claimed now: no other session can see it); the segments' rows, the heads of their logs; last, and only to number the feed's rows, the
-- commit shards'. Commits never wait for the former, so no swap stalls them longer than its own commit.
-- Idempotent: a call that was answered is answered the same. Cost: a few index probes per input and swap.
CREATE OR REPLACE FUNCTION swap_extents(
    p_job_id bigint, p_epoch bigint,
    p_file_id uuid, p_born_ms bigint, p_level smallint, p_size bigint, p_body_bytes bigint,
    p_key bigint[], p_base bigint[], p_last bigint[], p_position bigint[], p_length bigint[], p_leader_epoch int[],
    p_time bigint[],
    p_input_swap int[], p_input_last bigint[], p_input_file uuid[]
) RETURNS smallint[]
LANGUAGE sql VOLATILE AS $$
    SELECT swap_judged(p_job_id, p_epoch, p_file_id, p_born_ms, p_level, p_size, p_body_bytes, p_key, p_base, p_last,
                       p_position, p_length, p_leader_epoch, p_time, p_input_swap, p_input_last, p_input_file, NULL)
$$;

-- swap_extents; with p_cleaned as swap_cleaned_extents: no swap is done if one of these partitions is cleaned less far.
-- Locks, idempotence, cost: as that.
CREATE OR REPLACE FUNCTION swap_judged(
    p_job_id bigint, p_epoch bigint,
    p_file_id uuid, p_born_ms bigint, p_level smallint, p_size bigint, p_body_bytes bigint,
    p_key bigint[], p_base bigint[], p_last bigint[], p_position bigint[], p_length bigint[], p_leader_epoch int[],
    p_time bigint[],
    p_input_swap int[], p_input_last bigint[], p_input_file uuid[], p_cleaned bigint[]
) RETURNS smallint[]
LANGUAGE plpgsql VOLATILE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_shards   smallint := (SELECT commit_shards FROM cluster);
    v_call     uuid := swap_call(p_key, p_last, p_input_swap, p_input_last, p_input_file);
    v_outcomes smallint[];
    v_open     boolean[];      -- by swap: no call has settled its segment
    v_before   boolean[];      -- by swap: done by an earlier call
    v_intact   boolean[];      -- by swap
    v_appended timestamptz[];  -- by swap: the newest commit of records without a timestamp, if there are any
    v_gap      int;            -- the first swap with a gap between its inputs
    v_keys     bigint[];       -- by extent removed
    v_files    uuid[];
    v_bytes    bigint[];
    v_ends     bigint[];       -- by swap: the end offset of its segment; NULL without one
    v_old_ends bigint[];       -- by extent removed
    v_old_epochs int[];
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM partitions WHERE partition_key = ANY (p_key) ORDER BY partition_key FOR NO KEY UPDATE;

    -- Is the file ours to name?
    INSERT INTO segment_files (file_id, state, level, size, body_bytes, live_bytes, committed_at, dead_at)
    SELECT p_file_id, file_live(), p_level, p_size, p_body_bytes, 0, wall_time(), wall_time()
     WHERE segment_level() < 1 AND birth_accepted(p_born_ms)
    ON CONFLICT DO NOTHING;
    PERFORM FROM segment_files WHERE file_id = ANY (p_input_file || p_file_id) ORDER BY file_id FOR NO KEY UPDATE;
    v_ends := segments_of_swaps(p_epoch, p_file_id, p_key, p_last);
    UPDATE segment_files
       SET state = file_live(), size = p_size, body_bytes = p_body_bytes, dead_at = wall_time()
     WHERE file_id = p_file_id AND state = file_reserved() AND segments > 0;
    PERFORM FROM segment_files WHERE file_id = p_file_id AND state = file_live()
        AND (segments = 0 AND segment_level() < 1 OR v_ends IS NOT NULL);
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;

    -- Has this call been answered?
    SELECT outcomes INTO v_outcomes FROM swap_answers
     WHERE job_id = p_job_id AND epoch = p_epoch AND file_id = p_file_id AND call = v_call;
    IF FOUND THEN
        RETURN v_outcomes;
    END IF;

    -- Which swaps can be done?
    v_open := segments_are_open(p_epoch, p_key, v_ends, cleaned_as_far(p_key, p_cleaned));
    SELECT array_agg(before ORDER BY swap), array_agg(intact ORDER BY swap), array_agg(appended ORDER BY swap),
           min(swap) FILTER (WHERE intact AND NOT covered)
      INTO v_before, v_intact, v_appended, v_gap
      FROM (SELECT i.swap,
                   bool_and(e.base_offset = coalesce(i.before + 1, p_base[i.swap])) AND max(i.last) = p_last[i.swap] AS covered,
                   coalesce(bool_or(e.file_id = p_file_id), false) AS before,
                   bool_and(p.partition_key IS NOT NULL AND p_last[i.swap] >= p.log_start_offset AND v_open[i.swap]
                            AND e.file_id IS NOT DISTINCT FROM i.file_id
                            AND (p_cleaned IS NOT NULL OR i.last = p_last[i.swap]
                                 OR i.last + 1 IS DISTINCT FROM c.cleaned_offset)) AS intact,
                   max(CASE WHEN e.appended_at IS NULL AND e.max_timestamp < 0
                            THEN (SELECT committed_at FROM segment_files WHERE file_id = e.file_id)
                            WHEN p_time[i.swap] < 0 AND e.max_timestamp >= 0
                            THEN greatest(record_time(e.max_timestamp), e.appended_at)
                            ELSE e.appended_at END) FILTER (WHERE e.file_id = i.file_id) AS appended
              FROM (SELECT *, lag(last) OVER (PARTITION BY swap ORDER BY last) AS before
                      FROM unnest(p_input_swap, p_input_last, p_input_file) AS i (swap, last, file_id)) AS i
              LEFT JOIN partitions p ON p.partition_key = p_key[i.swap]
              LEFT JOIN cleaned_partitions c ON c.partition_key = p_key[i.swap]
              LEFT JOIN extents e ON e.partition_key = p_key[i.swap] AND e.last_offset = i.last
             GROUP BY i.swap) AS s;

    IF v_gap IS NOT NULL THEN
        RAISE EXCEPTION 'inputs of a swap do not cover it: partition_key=% offsets=%-% file=%',
            p_key[v_gap], p_base[v_gap], p_last[v_gap], p_file_id;
    END IF;

    -- The old out, the new in.
    WITH removed AS (
        DELETE FROM extents e
         USING unnest(p_input_swap, p_input_last, p_input_file) AS i (swap, last, file_id)
         WHERE v_intact[i.swap] AND e.partition_key = p_key[i.swap] AND e.last_offset = i.last
           AND e.file_id = i.file_id
        RETURNING e.partition_key, e.file_id, e.length, e.segment_end, e.segment_epoch
    )
    SELECT array_agg(partition_key), array_agg(file_id), array_agg(length), array_agg(segment_end),
           array_agg(segment_epoch)
      INTO v_keys, v_files, v_bytes, v_old_ends, v_old_epochs FROM removed;
    PERFORM assert_changed('inputs', (SELECT count(*) FROM unnest(p_input_swap) AS swap WHERE v_intact[swap]),
                           coalesce(cardinality(v_keys), 0));
    INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                         max_timestamp, appended_at, segment_end, segment_epoch)
    SELECT p_key[swap], p_base[swap], p_last[swap], p_file_id, p_position[swap], p_length[swap],
           p_leader_epoch[swap], p_time[swap], v_appended[swap], v_ends[swap],
           CASE WHEN v_ends[swap] IS NOT NULL THEN p_epoch END
      FROM generate_subscripts(p_key, 1) AS swap
     WHERE v_intact[swap];
    PERFORM thin_time_blocks(array_agg(p_key[swap]), array_agg(p_base[swap]), array_agg(p_last[swap]))
       FROM generate_subscripts(p_key, 1) AS swap WHERE v_intact[swap];

    -- What files and partitions hold.
    UPDATE segment_files f
       SET live_bytes = f.live_bytes + b.bytes,
           dead_at = CASE WHEN f.live_bytes + b.bytes = 0 THEN coalesce(f.dead_at, wall_time()) END
      FROM (SELECT file_id, sum(bytes) AS bytes
              FROM (SELECT file_id, -bytes AS bytes FROM unnest(v_files, v_bytes) AS r (file_id, bytes)
                    UNION ALL
                    SELECT p_file_id, p_length[swap] FROM generate_subscripts(p_key, 1) AS swap WHERE v_intact[swap]
                   ) AS change
             GROUP BY file_id) AS b
     WHERE f.file_id = b.file_id;
    UPDATE partitions p
       SET removed_bytes = p.removed_bytes + b.bytes
      FROM (SELECT key, sum(bytes) AS bytes
              FROM (SELECT key, bytes FROM unnest(v_keys, v_bytes) AS r (key, bytes)
                    UNION ALL
                    SELECT p_key[swap], -p_length[swap]
                      FROM generate_subscripts(p_key, 1) AS swap WHERE v_intact[swap]) AS change
             GROUP BY key) AS b
     WHERE p.partition_key = b.key;

    -- What became of segments.
    PERFORM lock_log_heads(array_agg(metadata_partition(topic_id, partition_index)))
       FROM partitions WHERE partition_key = ANY (p_key) AND (v_ends IS NOT NULL OR v_old_ends IS NOT NULL);
    PERFORM assert_changed('live extents', (SELECT count(*) FROM unnest(v_ends, v_intact) AS t (segment_end, intact)
                                             WHERE segment_end IS NOT NULL AND intact),
                           settle_segments(p_job_id, p_epoch, p_key, v_ends, v_intact));
    PERFORM end_removed(v_keys, v_old_ends, v_old_epochs, cause_replaced(), p_job_id);

    -- What readers hear.
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(p_key[swap], v_shards)))
       FROM generate_subscripts(p_key, 1) AS swap WHERE v_intact[swap];
    PERFORM append_feed(r.shard, feed_swap(), r.payload)
       FROM (SELECT commit_shard(p_key[swap], v_shards) AS shard,
                    string_agg(pack_extent(p_key[swap], p_base[swap], p_last[swap], p_file_id, p_position[swap],
                                           p_length[swap], p_leader_epoch[swap], p_time[swap]), ''::bytea
                               ORDER BY p_key[swap], p_base[swap]) AS payload
               FROM generate_subscripts(p_key, 1) AS swap WHERE v_intact[swap]
              GROUP BY 1 ORDER BY 1) AS r;
    v_outcomes := array(SELECT CASE WHEN v_intact[swap] OR v_before[swap] THEN swap_done() ELSE swap_lost() END
                          FROM generate_subscripts(p_key, 1) AS swap ORDER BY swap);
    PERFORM keep_swap_answer(p_job_id, p_epoch, p_file_id, v_call, v_outcomes);
    RETURN v_outcomes;
END $$;
