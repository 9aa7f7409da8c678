-- The commit: order the batches of stored segment files, all in one call.
--
-- Input, as metastore/postgres/commit.py packs it (numbers count from 1):
--   files       in commit order: ids, births (ms, as the ids carry them), sizes, bytes of all batches
--   p_keys      the distinct partitions, ascending
--   p_prod_*    the distinct (partition, producer id) pairs: epoch and base sequence of the pair's first
--               batch, and whether its batches continue each other in one epoch
--   p_batch_*   the batches, sorted by partition, then by file and place in the file: order of commit.
--               prod 0: no producer id. joined: same file and partition as the batch before it, and
--               its bytes go on where that one's end
-- Output: one row per file, in order: metastore.values.FileStatus, and its answers (packing.py) when it is 0.
--
-- Locks: the named partitions' commit shards, ascending; then the file ids, ascending.
-- Idempotent by file id: a file that is committed already gets the answer that it got first.
-- Cost: a few index probes per partition, producer and extent; never depends on history.
-- No statement loops over batches, unless a producer repeats, skips or starts over (fold_producers).
CREATE OR REPLACE FUNCTION commit_files(
    p_node_id int, p_broker_epoch bigint, p_producer_expiration_ms bigint,
    p_file_ids uuid[], p_file_births bigint[], p_file_sizes bigint[], p_file_bytes bigint[],
    p_keys bigint[],
    p_prod_part int[], p_prod_id bigint[], p_prod_epoch smallint[], p_prod_sequence int[], p_prod_chained boolean[],
    p_batch_file int[], p_batch_part int[], p_batch_prod int[], p_batch_joined boolean[],
    p_batch_position bigint[], p_batch_length int[], p_batch_records int[], p_batch_time bigint[],
    p_batch_epoch smallint[], p_batch_sequence int[], p_batch_leader_epoch int[], p_batch_count int[]
) RETURNS TABLE (status smallint, answer bytea)
LANGUAGE plpgsql VOLATILE
SET jit = off
-- arrays have no statistics: keep the planner on the index probes that these statements are made for
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_shards       smallint := (SELECT commit_shards FROM cluster);
    v_fenced       boolean;
    v_claimed      uuid[];
    v_ours         boolean[];   -- by file
    v_leader_epoch int[];       -- by partition; NULL when there is none
    v_head         bigint[];    -- by partition: its high watermark before this call
    v_outcome      smallint[];  -- by batch: metastore.values.BatchOutcome; -1 in a file that is not ours
    v_prod_known   boolean[];   -- by producer: it has a row
    v_prod_regular boolean[] := p_prod_chained;
    v_base         bigint[];    -- by batch: base offset
    v_time         bigint[] := p_batch_time;
    v_run          int[];       -- by batch: the accepted batches of one run become one extent
    v_full         bigint[];    -- partitions whose open time block has become full
    v_answers      bytea[];     -- by file
BEGIN
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(p_keys) AS key;

    -- Files: whose they are.
    v_fenced := NOT EXISTS (SELECT FROM agents
                             WHERE node_id = p_node_id AND broker_epoch = p_broker_epoch AND NOT fenced);
    IF NOT v_fenced THEN
        v_claimed := claim_files(p_file_ids, p_file_births, p_file_sizes, p_file_bytes);
    END IF;
    v_ours := array(SELECT coalesce(id = ANY (v_claimed), false)
                      FROM unnest(p_file_ids) WITH ORDINALITY AS f (id, file) ORDER BY file);

    -- Partitions: what refuses a batch whoever produced it. Of these, 5 and 6 give way if it is a duplicate.
    SELECT array_agg(p.leader_epoch ORDER BY part), array_agg(h.high_watermark ORDER BY part)
      INTO v_leader_epoch, v_head
      FROM unnest(p_keys) WITH ORDINALITY AS k (key, part)
      LEFT JOIN partitions p ON p.partition_key = key
      LEFT JOIN partition_heads h ON h.partition_key = key;
    v_outcome := array(
        SELECT CASE WHEN NOT v_ours[file] THEN -1
                    WHEN v_leader_epoch[part] IS NULL THEN 4
                    WHEN leader_epoch NOT IN (-1, v_leader_epoch[part]) THEN 6
                    WHEN count <> -1 AND count <> (SELECT undeleted_partition_count FROM topics
                                                    WHERE topic_number = p_keys[part] >> 24) THEN 5
                    ELSE 0 END
          FROM unnest(p_batch_file, p_batch_part, p_batch_leader_epoch, p_batch_count)
               WITH ORDINALITY AS b (file, part, leader_epoch, count, i)
         ORDER BY i);

    -- Producers: a regular one goes on exactly where its row ends, or starts (over) at sequence 0.
    IF 0 <> ANY (v_outcome) THEN
        v_prod_regular := array(
            SELECT p_prod_chained[prod] AND bool_and(v_outcome[i] = 0)
              FROM unnest(p_batch_prod) WITH ORDINALITY AS b (prod, i)
             WHERE prod > 0 GROUP BY prod ORDER BY prod);
    END IF;
    SELECT array_agg(s.epoch IS NOT NULL ORDER BY prod),
           array_agg(regular AND CASE WHEN g.epoch = s.epoch THEN g.sequence = s.next_sequence
                                      ELSE g.sequence = 0 AND coalesce(g.epoch > s.epoch, true) END ORDER BY prod)
      INTO v_prod_known, v_prod_regular
      FROM unnest(p_prod_part, p_prod_id, p_prod_epoch, p_prod_sequence, v_prod_regular)
           WITH ORDINALITY AS g (part, id, epoch, sequence, regular, prod)
      LEFT JOIN producer_state s ON s.partition_key = p_keys[part] AND s.producer_id = id;
    IF false = ANY (v_prod_regular) THEN
        SELECT f.outcome, f.base, f.append_time INTO v_outcome, v_base, v_time
          FROM fold_producers(p_producer_expiration_ms, p_keys, p_prod_part, p_prod_id, v_prod_regular,
                              p_batch_prod, p_batch_records, p_batch_epoch, p_batch_sequence, v_outcome, v_time) AS f;
    END IF;

    -- Offsets: a running sum per partition over what is accepted.
    SELECT array_agg(base ORDER BY i), array_agg(run ORDER BY i)
      INTO v_base, v_run
      FROM (SELECT i,
                   CASE v_outcome[i]
                       WHEN 0 THEN v_head[part] - records + sum(records) FILTER (WHERE v_outcome[i] = 0) OVER before
                       WHEN 1 THEN v_base[i]
                       ELSE -1 END AS base,
                   count(*) FILTER (WHERE v_outcome[i] = 0 AND NOT (joined AND v_outcome[i - 1] = 0)) OVER before AS run
              FROM unnest(p_batch_part, p_batch_records, p_batch_joined) WITH ORDINALITY AS b (part, records, joined, i)
            WINDOW before AS (PARTITION BY part ORDER BY i ROWS UNBOUNDED PRECEDING)) AS placed;
    IF 1 = ANY (v_outcome) THEN  -- base -n: a duplicate of batch n of this very call
        v_base := array(SELECT CASE WHEN v_outcome[i] = 1 AND base < 0 THEN v_base[-base] ELSE base END
                          FROM unnest(v_base) WITH ORDINALITY AS b (base, i) ORDER BY i);
    END IF;

    -- What readers see: extents, the feed, heads.
    WITH run AS MATERIALIZED (
        SELECT part, min(file) AS file, min(base) AS base, min(base) + sum(records) - 1 AS last,
               min(position) AS position, sum(length) AS length, max(time) AS time
          FROM unnest(p_batch_file, p_batch_part, v_run, v_base, p_batch_records, p_batch_position, p_batch_length,
                      p_batch_time) WITH ORDINALITY AS b (file, part, run, base, records, position, length, time, i)
         WHERE v_outcome[i] = 0
         GROUP BY part, run
    ), appended AS (
        INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                             max_timestamp)
        SELECT p_keys[part], base, last, p_file_ids[file], position, length, v_leader_epoch[part], time FROM run
    ), numbered AS (
        UPDATE commit_shards c SET seq = c.seq + 1
          FROM (SELECT commit_shard(p_keys[part], v_shards) AS shard,
                       string_agg(pack_extent(p_keys[part], base, last, p_file_ids[file], position, length,
                                              v_leader_epoch[part], time), '' ORDER BY part, base) AS payload
                  FROM run GROUP BY 1) AS r
         WHERE c.shard = r.shard
        RETURNING c.shard, c.seq, r.payload
    ), announced AS (
        INSERT INTO commit_log (slot, shard, seq, kind, payload)
        SELECT feed_slot(), shard, seq, 0, payload FROM numbered
    ), moved AS (
        UPDATE partition_heads h
           SET high_watermark = r.last + 1,
               max_timestamp = greatest(h.max_timestamp, r.time),
               open_extents = h.open_extents + r.extents
          FROM (SELECT part, max(last) AS last, max(time) AS time, count(*) AS extents FROM run GROUP BY part) AS r
         WHERE h.partition_key = p_keys[r.part]
        RETURNING h.partition_key, h.open_extents
    )
    SELECT array_agg(partition_key) INTO v_full FROM moved WHERE open_extents >= time_block_extents();
    IF v_full IS NOT NULL THEN
        PERFORM close_time_blocks(v_full);
    END IF;

    -- What the next commit judges by.
    WITH batch AS MATERIALIZED (
        SELECT DISTINCT ON (prod) prod, epoch, max(i) AS last,
               string_agg(pack_ring_entry(sequence, records, v_base[i], time), '' ORDER BY i DESC) AS entries
          FROM unnest(p_batch_prod, p_batch_epoch, p_batch_sequence, p_batch_records, p_batch_time)
               WITH ORDINALITY AS b (prod, epoch, sequence, records, time, i)
         WHERE prod > 0 AND v_outcome[i] = 0
         GROUP BY prod, epoch
         ORDER BY prod, epoch DESC
    ), gone_on AS (
        UPDATE producer_state s
           SET epoch = b.epoch,
               next_sequence = next_sequence(p_batch_sequence[last], p_batch_records[last]),
               ring = substring(entries || CASE WHEN s.epoch = b.epoch THEN s.ring ELSE '' END FROM 1 FOR 120),
               touched_hour = wall_ms() / 3600000
          FROM batch b
         WHERE v_prod_known[prod] AND s.partition_key = p_keys[p_prod_part[prod]] AND s.producer_id = p_prod_id[prod]
    )
    INSERT INTO producer_state (partition_key, producer_id, epoch, next_sequence, ring, touched_hour)
    SELECT p_keys[p_prod_part[prod]], p_prod_id[prod], epoch,
           next_sequence(p_batch_sequence[last], p_batch_records[last]),
           substring(entries FROM 1 FOR 120), wall_ms() / 3600000
      FROM batch
     WHERE NOT v_prod_known[prod];

    -- What the caller is told, now and if it asks again.
    IF 0 <> ANY (v_outcome) THEN
        UPDATE segment_files f SET live_bytes = a.live_bytes
          FROM (SELECT file, coalesce(sum(length) FILTER (WHERE v_outcome[i] = 0), 0) AS live_bytes
                  FROM unnest(p_batch_file, p_batch_length) WITH ORDINALITY AS b (file, length, i)
                 WHERE v_ours[file] GROUP BY file) AS a
         WHERE f.file_id = p_file_ids[a.file];
    END IF;
    WITH told AS (
        SELECT file, string_agg(answer, '' ORDER BY i) AS answer
          FROM (SELECT file, i, pack_answer(v_outcome[i], v_base[i], v_time[i]) AS answer
                  FROM unnest(p_batch_file) WITH ORDINALITY AS b (file, i)
                UNION ALL
                SELECT file, 0, '' FROM generate_subscripts(p_file_ids, 1) AS file) AS b
         GROUP BY file
    ), kept AS (
        INSERT INTO commit_answers (slot, file_id, answer)
        SELECT answer_slot(p_file_births[file]), p_file_ids[file], answer FROM told WHERE v_ours[file]
    )
    SELECT array_agg(answer ORDER BY file) INTO v_answers FROM told;
    RETURN QUERY
        SELECT s.status, s.answer
          FROM unnest(p_file_ids, p_file_births, v_ours, v_answers) WITH ORDINALITY AS f (id, born_ms, ours, answer, file)
         CROSS JOIN LATERAL (SELECT 0::smallint AS status, f.answer WHERE ours
                             UNION ALL
                             SELECT * FROM settled_file(id, born_ms, v_fenced) WHERE NOT ours) AS s
         ORDER BY file;
END $$;
