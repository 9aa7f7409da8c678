-- The commit: order the batches of stored segment files, all in one call.
--
-- Input, as metastore/postgres/commit/commit.py lays it out. Rows are named by number, from 1; 0 is none.
--   files       in commit order: ids, births (ms, as the ids carry them), sizes, bytes of all batches
--   p_part_*    the distinct partitions, ascending: keys, and what their batches expect of leader epoch
--               and partition count (-1: nothing); then the aliases that batches came for
--   p_parts_agree  whether all batches of a partition expect the same, for each of the partitions
--   p_batch_*   the batches by partition, then file, then place in the file: the order of commit
--   p_batch_transaction, p_batch_keys  metastore.api.commit.BatchTransaction and MovedKeys
--   p_batch_alias  the index of the alias that the batch came for; -1: none. Each of the three is empty if no batch
--               has any
-- and what holds if every batch is accepted:
--   before      records of the batch's partition that come before it in this call
--   run         neighbours in bytes, of one file and partition: they become one extent
--   p_part_*    by partition: records, extents (runs), their bytes and their highest timestamp
--   p_prod_*    the distinct (partition, alias, producer id): first and last batch, and whether their
--               batches continue each other in one epoch
--   p_recent    the batches that a producer's ring will hold, by producer, then in order; p_prod_recent: where in
--               p_recent those of each producer end; p_ring: 16 bytes of each (lay_out.sql)
-- What a call of many batches needs of all of them is laid out by partition, run and producer: Postgres sorts and sums
-- nothing unless it has to refuse something.
-- Output: one row per file, in order: metastore.api.commit.FileStatus, and its answer (packing.sql)
-- if it is COMMITTED.
--
-- Locks: the named partitions' commit shards, ascending; then the file ids, ascending; while a topic doubles, then its
-- splits, ascending; before those, the transactions that get a partition, by producer id.
-- A producer's state may have expired after the cluster's producer.id.expiration.ms; p_producer_expiration_ms counts
-- while the cluster has no value.
-- Idempotent by file id: a file that is committed already gets the answer that it got first.
-- Cost: a few index probes per partition, producer and extent; never depends on history, nor on how long another
-- session holds a snapshot: each probe finds the newest version of its row first (update_block). Only a call
-- that holds something to refuse, or a duplicate, is gone through batch by batch (judge_batches).
CREATE OR REPLACE FUNCTION commit_files(
    p_node_id int, p_broker_epoch bigint, p_producer_expiration_ms bigint,
    p_file_id uuid[], p_file_born_ms bigint[], p_file_size bigint[], p_file_bytes bigint[],
    p_part_key bigint[], p_part_leader_epoch int[], p_part_count int[], p_parts_agree boolean,
    p_batch_file int[], p_batch_part int[], p_batch_prod int[], p_batch_position bigint[], p_batch_length int[],
    p_batch_records int[], p_batch_time bigint[], p_batch_epoch smallint[], p_batch_sequence int[],
    p_batch_leader_epoch int[], p_batch_count int[],
    p_batch_transaction int[], p_batch_keys int[], p_batch_alias int[],
    p_batch_before bigint[], p_batch_run int[], p_run_first int[], p_run_last int[], p_run_time bigint[],
    p_part_records bigint[], p_part_extents int[], p_part_bytes bigint[], p_part_time bigint[],
    p_prod_id bigint[], p_prod_first int[], p_prod_last int[], p_prod_chained boolean[],
    p_recent int[], p_prod_recent int[], p_ring bytea
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
    v_shards       smallint;
    v_fenced       boolean;
    v_claimed      uuid[];
    v_ours         boolean[];  -- by file
    v_part_epoch   int[];      -- by partition: its leader epoch; NULL when there is no such partition
    v_part_head    bigint[];   -- by partition: its high watermark before this call
    v_part_row     tid[];      -- by partition: where its head is; it stays there, we hold the shard
    v_part_regular boolean;
    v_prod_row     tid[];      -- by producer: where its state is, in the same way
    v_prod_regular boolean[];
    v_life         int;
    v_hour         int;
    v_full         bigint[];   -- partitions with an open time block that is now full
    v_answer       bytea[];    -- by file
    v_split_ms     bigint;
    v_states       smallint[]; -- of the partitions
    v_split        int[];      -- by batch: judge_splits and judge_merges; NULL: no partition splits or merges
    v_merges       boolean := false;
    v_prod_key     bigint[];   -- by producer: the partition with its state; NULL: its batches' own
    v_part_open    bigint[];   -- by partition: its first open offset; NULL: no transaction is open
    v_txn          int[];      -- by batch: judge_transactions; NULL: it lets all pass
    v_is_txn       boolean := p_batch_transaction <> '{}';
BEGIN
    SELECT commit_shards, life INTO v_shards, v_life FROM cluster;
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(p_part_key) AS key;

    -- Which files are ours to commit?
    v_fenced := NOT EXISTS (SELECT FROM agents
                             WHERE node_id = p_node_id AND broker_epoch = p_broker_epoch AND NOT fenced);
    IF NOT v_fenced THEN
        v_claimed := claim_files(p_file_id, p_file_born_ms, p_file_size, p_file_bytes);
    END IF;
    IF cardinality(v_claimed) = cardinality(p_file_id) THEN
        v_ours := array_fill(true, ARRAY[cardinality(p_file_id)]);
    ELSE
        v_ours := array(SELECT coalesce(id = ANY (v_claimed), false)
                          FROM unnest(p_file_id) WITH ORDINALITY AS f (id, file) ORDER BY file);
    END IF;

    -- Are the partitions what their batches expect?
    SELECT array_agg(p.leader_epoch ORDER BY part), array_agg(h.high_watermark ORDER BY part),
           array_agg(h.row ORDER BY part), array_agg(h.first_open_offset ORDER BY part),
           coalesce(bool_and(p.partition_key IS NOT NULL AND p.state = state_takes_records()
                             AND (p_part_leader_epoch[part] = -1 OR p_part_leader_epoch[part] = p.leader_epoch)
                             AND (p_part_count[part] = -1
                                  OR p_part_count[part] = (SELECT undeleted_partition_count FROM topics
                                                            WHERE topic_number = p_part_key[part] >> 24))), true)
      INTO v_part_epoch, v_part_head, v_part_row, v_part_open, v_part_regular
      FROM generate_subscripts(p_part_key, 1) AS part
      LEFT JOIN partitions p ON p.partition_key = p_part_key[part]
      LEFT JOIN LATERAL (SELECT ctid AS row, high_watermark, first_open_offset
                           FROM partition_heads WHERE partition_key = p_part_key[part]
                          ORDER BY update_block DESC LIMIT 1) AS h ON true;

    -- Do the producers continue exactly where their rows end, or start (over) at sequence 0?
    SELECT array_agg(s.row ORDER BY prod),
           array_agg(chained AND CASE WHEN s.epoch = p_batch_epoch[first]
                                      THEN p_batch_sequence[first] = s.next_sequence
                                      ELSE p_batch_sequence[first] = 0
                                           AND coalesce(s.epoch < p_batch_epoch[first], true) END ORDER BY prod)
      INTO v_prod_row, v_prod_regular
      FROM unnest(p_prod_id, p_prod_first, p_prod_chained) WITH ORDINALITY AS g (id, first, chained, prod)
      LEFT JOIN LATERAL (SELECT ctid AS row, epoch, next_sequence FROM producer_state
                          WHERE partition_key = p_part_key[p_batch_part[first]] AND producer_id = id
                          ORDER BY update_block DESC LIMIT 1) AS s ON true;

    IF v_is_txn OR cardinality(p_prod_id) > 0 AND 0 <= ANY (v_part_open) THEN
        v_txn := judge_transactions(p_part_key, p_batch_part, p_batch_prod, p_batch_epoch, p_batch_transaction,
                                    p_prod_id);
    END IF;

    IF v_part_regular AND p_parts_agree AND p_batch_keys = '{}' AND p_batch_alias = '{}' AND v_txn IS NULL
       AND true = ALL (v_ours) AND true = ALL (coalesce(v_prod_regular, '{}')) THEN
        IF cardinality(p_run_first) = 1 AND cardinality(p_file_id) = 1 THEN  -- one run of one file and partition
            v_answer := ARRAY['\x00'::bytea || int8send(v_part_head[1])];
        ELSE
            v_answer := array(
                SELECT string_agg(base, '' ORDER BY first)
                  FROM (SELECT file, 0 AS first, '\x00'::bytea AS base FROM generate_subscripts(p_file_id, 1) AS file
                        UNION ALL
                        SELECT p_batch_file[first], first,
                               int8send(v_part_head[p_batch_part[first]] + p_batch_before[first])
                          FROM unnest(p_run_first) AS first) AS run
                 GROUP BY file ORDER BY file);
        END IF;
    ELSE
        v_states := array(SELECT state FROM partitions WHERE partition_key = ANY (p_part_key));
        IF v_states && ARRAY[state_splits(), state_is_child()] THEN
            PERFORM lock_splits(p_part_key);
            v_split_ms := wall_ms();
            v_split := judge_splits(v_split_ms, p_part_key, p_batch_part, p_batch_prod, p_prod_id, p_batch_count,
                                    p_batch_keys, p_batch_alias);
        END IF;
        v_merges := v_states && ARRAY[state_paused(), state_alias(), state_merges()]
                    OR p_batch_alias <> '{}';
        IF v_merges THEN
            v_split_ms := coalesce(v_split_ms, wall_ms());
            v_split := judge_merges(v_split_ms, p_part_key, p_batch_part, p_batch_prod, p_prod_id, p_batch_count,
                                    p_batch_keys, p_batch_alias, v_split);
            SELECT f.prod_key, f.prod_row, f.prod_regular INTO v_prod_key, v_prod_row, v_prod_regular
              FROM find_producers_of_aliases(p_part_key, p_batch_part, p_batch_alias, p_prod_id, p_prod_first,
                                             v_prod_row, v_prod_regular) AS f;
        END IF;
        SELECT j.batch_before, j.run_first, j.run_last, j.run_time, j.prod_last, j.recent, j.answer
          INTO p_batch_before, p_run_first, p_run_last, p_run_time, p_prod_last, p_recent, v_answer
          FROM judge_batches(v_ours, coalesce(cluster_setting('producer.id.expiration.ms')::bigint, p_producer_expiration_ms),
                             p_part_key, v_part_epoch, v_part_head, p_batch_file, p_batch_part, p_batch_prod, p_batch_records, p_batch_time, p_batch_epoch,
                             p_batch_sequence, p_batch_leader_epoch, p_batch_count, p_batch_alias, p_batch_run,
                             p_prod_id, v_prod_regular, either_refusal(v_split, v_txn)) AS j;
        IF v_split IS NOT NULL THEN
            PERFORM note_split_batches(v_split_ms, p_part_key, p_batch_part, p_batch_prod, p_prod_id, p_batch_keys,
                                       v_split,
                                       array(SELECT last IS NOT NULL
                                               FROM unnest(p_prod_last) WITH ORDINALITY AS p (last, prod)
                                              ORDER BY prod));
        END IF;
        IF v_merges THEN
            PERFORM note_merges(v_split_ms, p_part_key, p_batch_part, p_batch_prod, p_prod_id, p_batch_keys,
                                p_batch_alias, v_split,
                                accepted_batches(p_batch_prod, p_batch_epoch, p_prod_last, p_recent));
        END IF;
        SELECT l.* INTO p_part_records, p_part_extents, p_part_bytes, p_part_time
          FROM lay_out_partitions(p_part_key, p_run_first, p_run_last, p_run_time, p_batch_part,
                                  p_batch_before, p_batch_records, p_batch_position, p_batch_length) AS l;
        SELECT l.* INTO p_prod_first, p_prod_recent, p_recent, p_ring
          FROM lay_out_producers(p_prod_id, p_recent, p_batch_prod, p_batch_records, p_batch_sequence,
                                 p_batch_time) AS l;
        UPDATE segment_files f SET live_bytes = run.bytes, dead_at = CASE WHEN run.bytes = 0 THEN wall_time() END
          FROM (SELECT file, sum(bytes) AS bytes
                  FROM (SELECT file, 0 AS bytes FROM generate_subscripts(p_file_id, 1) AS file
                        UNION ALL
                        SELECT p_batch_file[first],
                               p_batch_position[last] + p_batch_length[last] - p_batch_position[first]
                          FROM unnest(p_run_first, p_run_last) AS r (first, last)) AS run
                 WHERE v_ours[file] GROUP BY file) AS run
         WHERE f.file_id = p_file_id[run.file];
    END IF;

    -- What readers see: extents, the feed, heads.
    IF v_is_txn THEN
        v_part_open := note_transactions(p_part_key, v_part_head, v_part_open, p_batch_part, p_batch_prod,
                                         p_batch_before, p_batch_transaction, p_run_first, p_run_last, p_prod_id);
    END IF;
    WITH run AS MATERIALIZED (
        SELECT part, p_part_key[part] AS key, base, base + records - 1 AS last, p_file_id[file] AS file_id,
               position, length, v_part_epoch[part] AS leader_epoch, time
          FROM unnest(p_run_first, p_run_last, p_run_time) AS r (first, last, time)
         CROSS JOIN LATERAL (SELECT p_batch_part[first] AS part, p_batch_file[first] AS file,
                                    v_part_head[p_batch_part[first]] + p_batch_before[first] AS base,
                                    p_batch_before[last] + p_batch_records[last] - p_batch_before[first] AS records,
                                    p_batch_position[first] AS position,
                                    p_batch_position[last] + p_batch_length[last] - p_batch_position[first] AS length
                            ) AS b
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
        SELECT feed_slot(), shard, seq, CASE WHEN v_is_txn THEN feed_transaction() ELSE feed_commit() END,
               CASE WHEN v_is_txn
                    THEN pack_transaction_row(payload, pack_open_offsets(shard, v_shards, p_part_key, v_part_open), '')
                    ELSE payload END
          FROM numbered
    ), moved AS (
        UPDATE partition_heads h
           SET high_watermark = h.high_watermark + p_part_records[part],
               max_timestamp = greatest(h.max_timestamp, p_part_time[part]),
               open_extents = h.open_extents + p_part_extents[part],
               open_max_timestamp = greatest(h.open_max_timestamp, p_part_time[part]),
               appended_bytes = h.appended_bytes + p_part_bytes[part],
               first_open_offset = v_part_open[part],
               updates = h.updates + 1, update_block = update_block(h.updates + 1)
          FROM generate_subscripts(p_part_extents, 1) AS part
         WHERE h.ctid = v_part_row[part] AND p_part_extents[part] > 0
        RETURNING h.partition_key, h.open_extents
    )
    SELECT array_agg(partition_key) INTO v_full FROM moved
     WHERE open_extents >= time_block_extents(partition_key);
    IF v_full IS NOT NULL THEN
        PERFORM close_time_blocks(v_full);
    END IF;

    -- What the next commit judges by.
    IF cardinality(p_prod_id) > 0 THEN
        v_hour := wall_ms() / 3600000;
        UPDATE producer_state s
           SET epoch = p_batch_epoch[last],
               next_sequence = next,
               ring = substring(recent_entries(p_ring, p_recent, p_batch_before, v_part_head[p_batch_part[last]],
                                               p_prod_recent[prod - 1], p_prod_recent[prod])
                                || CASE WHEN s.epoch = p_batch_epoch[last] THEN s.ring ELSE '' END FROM 1 FOR 120),
               touched_hour = v_hour, updates = s.updates + 1, update_block = update_block(s.updates + 1),
               contiguous_life = CASE WHEN s.epoch = p_batch_epoch[last] THEN s.contiguous_life
                                      WHEN start = 0 THEN v_life ELSE -1 END,
               wrapped = CASE WHEN s.epoch = p_batch_epoch[last] THEN s.wrapped OR next < s.next_sequence
                              ELSE next < start END
          FROM (SELECT prod, p_prod_last[prod] AS last,
                       p_batch_sequence[p_prod_first[prod]] AS start,  -- of this epoch
                       next_sequence(p_batch_sequence[p_prod_last[prod]], p_batch_records[p_prod_last[prod]]) AS next
                  FROM generate_subscripts(p_prod_id, 1) AS prod) AS p
         WHERE s.ctid = v_prod_row[prod] AND last IS NOT NULL;
        IF array_position(v_prod_row, NULL) IS NOT NULL THEN
            INSERT INTO producer_state (partition_key, producer_id, epoch, next_sequence, ring, touched_hour,
                                        contiguous_life, wrapped)
            SELECT coalesce(v_prod_key[prod], p_part_key[p_batch_part[last]]), p_prod_id[prod], p_batch_epoch[last], next,
                   substring(recent_entries(p_ring, p_recent, p_batch_before, v_part_head[p_batch_part[last]],
                                            p_prod_recent[prod - 1], p_prod_recent[prod]) FROM 1 FOR 120),
                   v_hour, CASE WHEN start = 0 THEN v_life ELSE -1 END, next < start
              FROM (SELECT prod, p_prod_last[prod] AS last,
                           p_batch_sequence[p_prod_first[prod]] AS start,
                           next_sequence(p_batch_sequence[p_prod_last[prod]], p_batch_records[p_prod_last[prod]]) AS next
                      FROM generate_subscripts(p_prod_id, 1) AS prod) AS p
             WHERE v_prod_row[prod] IS NULL AND last IS NOT NULL;
        END IF;
    END IF;

    -- The answer to the caller, now and if it asks again.
    INSERT INTO commit_answers (slot, file_id, answer)
    SELECT answer_slot(born_ms), id, answer
      FROM unnest(p_file_id, p_file_born_ms, v_ours, v_answer) AS f (id, born_ms, ours, answer)
     WHERE ours;
    IF true = ALL (v_ours) THEN
        RETURN QUERY SELECT commit_committed(), given FROM unnest(v_answer) AS given;
        RETURN;
    END IF;
    RETURN QUERY
        SELECT s.status, s.answer
          FROM unnest(p_file_id, p_file_born_ms, v_ours, v_answer)
               WITH ORDINALITY AS f (id, born_ms, ours, answer, file)
         CROSS JOIN LATERAL (SELECT commit_committed() AS status, f.answer WHERE ours
                             UNION ALL
                             SELECT * FROM settled_file(id, born_ms, v_fenced) WHERE NOT ours) AS s
         ORDER BY file;
END $$;
