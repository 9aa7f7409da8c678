-- Append what a link copied: runs with the source's offsets, to partitions with a log that ends where they begin.
--
-- Input: the file, started with its segments (start_segments.sql); the runs by partition, then in offset order; the
-- states of producers after them. Output: metastore.api.links.LinkedOutcome per run; NULL, and nothing happened, when
-- the file's id cannot be used: deleted, or not reserved for this lease and these offsets.
--
-- All runs of a partition are appended, or none: they continue its log and each other without a gap, leader epochs do
-- not fall and stay below the partition's own, and no producer of them has an id that this cluster gave to another.
-- So a chunk that comes again, late, or from two workers changes nothing: its base is not the log end any more.
--
-- Locks: the job's row, shared; the partitions' rows, ascending, which keep every other call for them waiting, as no
-- commit writes to a linked partition; the file's row; the segments' rows, the heads of their logs; last, to move the
-- heads and to number the feed's rows, the commit shards'.
-- Idempotent: see above. Cost: a few index probes and two inserts per run and producer.
CREATE OR REPLACE FUNCTION append_linked(
    p_job_id bigint, p_epoch bigint, p_file_id uuid, p_size bigint, p_body_bytes bigint,
    p_key bigint[], p_base bigint[], p_last bigint[], p_position bigint[], p_length bigint[], p_leader_epoch int[],
    p_time bigint[],
    p_prod_key bigint[], p_prod_id bigint[], p_prod_epoch int[], p_prod_next int[], p_prod_ring bytea[]
) RETURNS smallint[]
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
    v_shards smallint := (SELECT commit_shards FROM cluster);
    v_ends   bigint[];     -- by run: the end offset of its segment
    v_open   boolean[];    -- by run: no call has settled its segment
    v_done   boolean[];    -- by run
    v_taken  bigint[];     -- partitions with a producer that has an id of this cluster
    v_keys   bigint[];     -- partitions that grow, ascending
    v_full   bigint[];     -- those with an open time block that is now full
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM partitions WHERE partition_key = ANY (p_key) ORDER BY partition_key FOR NO KEY UPDATE;
    PERFORM FROM segment_files WHERE file_id = p_file_id FOR NO KEY UPDATE;
    v_ends := segments_of_swaps(p_epoch, p_file_id, p_key, p_last);
    UPDATE segment_files
       SET state = file_live(), size = p_size, body_bytes = p_body_bytes, dead_at = wall_time()
     WHERE file_id = p_file_id AND state = file_reserved() AND segments > 0;
    PERFORM FROM segment_files WHERE file_id = p_file_id AND state = file_live() AND v_ends IS NOT NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;

    -- Which partitions does it continue?
    v_open := segments_are_open(p_epoch, p_key, v_ends, true);
    v_taken := array(SELECT DISTINCT key FROM unnest(p_prod_key, p_prod_id) AS s (key, id) WHERE is_own_producer(id));
    SELECT array_agg(fits ORDER BY run) INTO v_done
      FROM (SELECT run, bool_and(fits AND key <> ALL (v_taken)) OVER (PARTITION BY key) AS fits
              FROM (SELECT r.run, r.key,
                           coalesce(p.state = state_linked() AND v_open[r.run] AND r.base <= r.last
                                    AND r.base = coalesce(lag(r.last) OVER of_key + 1, h.high_watermark)
                                    AND r.leader_epoch < p.leader_epoch
                                    AND r.leader_epoch >= coalesce(lag(r.leader_epoch) OVER of_key,
                                                                   last_linked_epoch(r.key)), false) AS fits
                      FROM unnest(p_key, p_base, p_last, p_leader_epoch)
                           WITH ORDINALITY AS r (key, base, last, leader_epoch, run)
                      LEFT JOIN partitions p ON p.partition_key = r.key
                      LEFT JOIN LATERAL (SELECT high_watermark FROM partition_heads WHERE partition_key = r.key
                                          ORDER BY update_block DESC LIMIT 1) AS h ON true
                    WINDOW of_key AS (PARTITION BY r.key ORDER BY r.run)) AS judged) AS whole;

    INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                         max_timestamp, segment_end, segment_epoch)
    SELECT p_key[run], p_base[run], p_last[run], p_file_id, p_position[run], p_length[run], p_leader_epoch[run],
           p_time[run], v_ends[run], p_epoch
      FROM generate_subscripts(p_key, 1) AS run
     WHERE v_done[run];
    UPDATE segment_files f SET live_bytes = f.live_bytes + b.bytes, dead_at = NULL
      FROM (SELECT sum(p_length[run]) AS bytes FROM generate_subscripts(p_key, 1) AS run WHERE v_done[run]) AS b
     WHERE f.file_id = p_file_id AND b.bytes > 0;
    UPDATE linked_partitions l SET copied_bytes = l.copied_bytes + b.bytes
      FROM (SELECT p_key[run] AS key, sum(p_length[run]) AS bytes FROM generate_subscripts(p_key, 1) AS run
             WHERE v_done[run] GROUP BY 1) AS b
     WHERE l.partition_key = b.key;

    PERFORM lock_log_heads(array_agg(metadata_partition(topic_id, partition_index)))
       FROM partitions WHERE partition_key = ANY (p_key);
    PERFORM settle_segments(p_job_id, p_epoch, p_key, v_ends, v_done);

    -- Heads, producers, and what readers hear.
    v_keys := array(SELECT DISTINCT p_key[run] FROM generate_subscripts(p_key, 1) AS run WHERE v_done[run] ORDER BY 1);
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(v_keys) AS key;
    WITH moved AS (
        UPDATE partition_heads h
           SET high_watermark = r.last + 1, max_timestamp = greatest(h.max_timestamp, r.time),
               open_extents = h.open_extents + r.extents, open_max_timestamp = greatest(h.open_max_timestamp, r.time),
               appended_bytes = h.appended_bytes + r.bytes,
               updates = h.updates + 1, update_block = update_block(h.updates + 1)
          FROM (SELECT p_key[run] AS key, max(p_last[run]) AS last, max(p_time[run]) AS time, count(*)::int AS extents,
                       sum(p_length[run]) AS bytes
                  FROM generate_subscripts(p_key, 1) AS run WHERE v_done[run] GROUP BY 1) AS r
         CROSS JOIN LATERAL (SELECT ctid AS row FROM partition_heads WHERE partition_key = r.key
                              ORDER BY update_block DESC LIMIT 1) AS newest
         WHERE h.ctid = newest.row
        RETURNING h.partition_key, h.open_extents
    )
    SELECT array_agg(partition_key) INTO v_full FROM moved
     WHERE open_extents >= time_block_extents(partition_key);
    IF v_full IS NOT NULL THEN
        PERFORM close_time_blocks(v_full);
    END IF;
    PERFORM set_copied_producers(array_agg(key), array_agg(id), array_agg(epoch), array_agg(next), array_agg(ring))
       FROM unnest(p_prod_key, p_prod_id, p_prod_epoch, p_prod_next, p_prod_ring) AS s (key, id, epoch, next, ring)
      WHERE key = ANY (v_keys);
    PERFORM append_feed(r.shard, feed_commit(), r.payload)
       FROM (SELECT commit_shard(p_key[run], v_shards) AS shard,
                    string_agg(pack_extent(p_key[run], p_base[run], p_last[run], p_file_id, p_position[run],
                                           p_length[run], p_leader_epoch[run], p_time[run]), ''::bytea
                               ORDER BY p_key[run], p_base[run]) AS payload
               FROM generate_subscripts(p_key, 1) AS run WHERE v_done[run]
              GROUP BY 1 ORDER BY 1) AS r;
    RETURN array(SELECT CASE WHEN v_done[run] THEN linked_done()
                             WHEN p_key[run] = ANY (v_taken) THEN linked_own_producer()
                             ELSE linked_lost() END
                   FROM generate_subscripts(p_key, 1) AS run ORDER BY run);
END $$;

-- The leader epoch of a partition's last extent; -1 if it has none.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION last_linked_epoch(p_key bigint) RETURNS int
LANGUAGE sql STABLE
SET enable_seqscan = off
RETURN coalesce((SELECT leader_epoch FROM extents WHERE partition_key = p_key ORDER BY last_offset DESC LIMIT 1), -1);

-- Whether this cluster has given the producer id out.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION is_own_producer(p_id bigint) RETURNS boolean
LANGUAGE sql STABLE
SET enable_seqscan = off
RETURN coalesce((SELECT last_id >= p_id FROM producer_id_blocks WHERE first_id <= p_id
                  ORDER BY first_id DESC LIMIT 1), false);

-- What is known of producers from now on, as a commit sets it; unjudged: their batches were judged at the source. No claim
-- that all of their batches are in the log (docs/decisions/0037): a cleaned source lacks some. A worker knows the batches that
-- it copied under its lease; of the same epoch, those from before it are kept.
-- Locks: the caller holds the shards' locks. Idempotent: yes. Cost: three index probes per producer.
CREATE OR REPLACE FUNCTION set_copied_producers(
    p_key bigint[], p_id bigint[], p_producer_epoch int[], p_next int[], p_ring bytea[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_hour  int := wall_ms() / 3600000;
    v_rings bytea[];
BEGIN
    SELECT array_agg(substring(ring || coalesce(ring_before(s.ring_known, ring), '') FROM 1 FOR 120) ORDER BY n)
      INTO v_rings
      FROM unnest(p_key, p_id, p_producer_epoch, p_ring) WITH ORDINALITY AS t (key, id, epoch, ring, n)
      LEFT JOIN LATERAL (SELECT k.ring AS ring_known FROM producer_state k
                          WHERE k.partition_key = t.key AND k.producer_id = t.id AND k.epoch = t.epoch
                          ORDER BY k.update_block DESC LIMIT 1) AS s ON true;
    DELETE FROM producer_state s USING unnest(p_key, p_id) AS t (key, id)
     WHERE s.partition_key = t.key AND s.producer_id = t.id;
    INSERT INTO producer_state (partition_key, producer_id, epoch, next_sequence, ring, touched_hour, contiguous_life,
                                wrapped)
    SELECT key, id, epoch::smallint, next, ring, v_hour, -1, true
      FROM unnest(p_key, p_id, p_producer_epoch, p_next, v_rings) AS s (key, id, epoch, next, ring);
END $$;

-- The entries of a ring with lower offsets than all of another one, in their order; all of them if that is empty.
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION ring_before(p_ring bytea, p_newer bytea) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT string_agg(substring(p_ring FROM place + 1 FOR 24), ''::bytea ORDER BY place)
      FROM generate_series(0, length(p_ring) - 24, 24) AS place
     WHERE length(p_newer) = 0 OR ring_number(p_ring, place + 8) < ring_number(p_newer, length(p_newer) - 16)
$$;
