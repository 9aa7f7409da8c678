-- End an open transaction in all its partitions and groups, as policy.py decided on the row of p_version. False, and
-- nothing happened, if the row has changed.
-- Each partition with data gets a marker (metastore/transaction_markers.py) at its high watermark, with p_marker_epoch.
-- If it commits, its pending offsets become the groups'; if not, readers hear which offsets to skip.
-- Partitions and groups that were deleted meanwhile are left out.
--
-- Locks: the rows of the partitions with pending offsets, ascending, shared (a deletion waits); the commit shards of
-- the transaction's partitions, ascending; the transaction's row; the group offsets by (group, partition).
-- All changes of its partitions raise the version, so a row of p_version still has those that were locked.
-- Idempotent: a repeated call finds another version. Cost: a few index probes per partition and offset.
CREATE OR REPLACE FUNCTION end_transaction(
    p_transactional_id text, p_version bigint, p_producer_id bigint, p_producer_epoch smallint, p_state smallint,
    p_timeout_ms int, p_previous_producer_id bigint, p_previous_epoch smallint, p_commits boolean, p_marker_epoch smallint
) RETURNS boolean
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
    v_producer bigint;
BEGIN
    SELECT producer_id INTO v_producer FROM transactions
     WHERE transactional_id = p_transactional_id AND version = p_version;
    IF p_commits THEN
        PERFORM FROM partitions
          WHERE partition_key IN (SELECT o.partition_key FROM pending_offsets o WHERE o.producer_id = v_producer)
          ORDER BY partition_key FOR KEY SHARE;
    END IF;
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(partition_key, v_shards)))
       FROM transaction_partitions WHERE producer_id = v_producer;
    UPDATE transactions
       SET producer_id = p_producer_id, producer_epoch = p_producer_epoch, state = p_state,
           timeout_ms = p_timeout_ms, previous_producer_id = p_previous_producer_id, previous_epoch = p_previous_epoch,
           groups = '{}', version = version + 1, changed_at = wall_time(), begun_at = NULL
     WHERE transactional_id = p_transactional_id AND version = p_version;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM append_markers(v_producer, p_commits, p_marker_epoch);
    DELETE FROM transaction_partitions WHERE producer_id = v_producer;
    IF p_commits THEN
        PERFORM store_pending_offsets(v_producer);
    END IF;
    DELETE FROM pending_offsets WHERE producer_id = v_producer;
    RETURN true;
END $$;

-- A marker in each partition with data of the producer's open transaction, what readers must know of it, and what the
-- bucket has to say of it.
-- Locks: none; the caller holds the shards. Idempotent: no. Cost: a few index probes per partition.
CREATE OR REPLACE FUNCTION append_markers(p_producer_id bigint, p_commits boolean, p_epoch smallint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_shards smallint := (SELECT commit_shards FROM cluster);
    v_file   uuid := marker_file_id(p_producer_id, p_epoch, p_commits);
    v_now    bigint := wall_ms();
    v_full   bigint[];
BEGIN
    WITH part AS MATERIALIZED (
        SELECT t.partition_key AS key, t.first_offset AS first, h.row, h.high_watermark AS marker, p.leader_epoch,
               (SELECT min(o.first_offset) FROM transaction_partitions o
                 WHERE o.partition_key = t.partition_key AND o.producer_id <> p_producer_id) AS open
          FROM transaction_partitions t
          JOIN partitions p USING (partition_key)
         CROSS JOIN LATERAL (SELECT ctid AS row, high_watermark FROM partition_heads
                              WHERE partition_key = t.partition_key ORDER BY update_block DESC LIMIT 1) AS h
         WHERE t.producer_id = p_producer_id AND t.first_offset IS NOT NULL
    ), appended AS (
        INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                             max_timestamp, appended_at)
        SELECT key, marker, marker, v_file, v_now, marker_bytes(), leader_epoch, -1, wall_time() FROM part
    ), aborted AS (
        INSERT INTO aborted_transactions (partition_key, last_offset, first_offset, producer_id, stable_offset)
        SELECT key, marker, first, p_producer_id, coalesce(open, marker + 1) FROM part WHERE NOT p_commits
    ), result AS (
        -- its batches are those before the sequence that its producer continues with; what came by way of an alias has
        -- other sequences, and then only an end that ends the epoch says which batches are meant: all
        INSERT INTO transaction_outcomes (partition_key, marker_offset, producer_id, epoch, end_sequence, ended_ms,
                                          commits)
        SELECT key, marker, p_producer_id, greatest(s.epoch, a.epoch),
               CASE WHEN a.epoch IS NULL THEN s.next_sequence ELSE 2147483647 END, v_now, p_commits
          FROM part
          LEFT JOIN LATERAL (SELECT epoch, next_sequence FROM producer_state
                              WHERE partition_key = key AND producer_id = p_producer_id
                              ORDER BY update_block DESC LIMIT 1) AS s ON true
         CROSS JOIN LATERAL (SELECT max(o.epoch) AS epoch
                               FROM partition_merges m
                               JOIN producer_state o ON o.partition_key = m.child_key AND o.producer_id = p_producer_id
                              WHERE m.parent_key = key) AS a
         WHERE a.epoch IS NULL AND s.epoch IS NOT NULL OR p_epoch > greatest(s.epoch, a.epoch)
    ), announced AS (
        SELECT append_feed(shard, feed_transaction(), pack_transaction_row(extents, opens, aborts))
          FROM (SELECT commit_shard(key, v_shards) AS shard,
                       string_agg(pack_extent(key, marker, marker, v_file, v_now, marker_bytes(), leader_epoch, -1), ''
                                  ORDER BY key) AS extents,
                       string_agg(int8send(key) || int8send(coalesce(open, -1)), '' ORDER BY key) AS opens,
                       coalesce(string_agg(pack_aborted(key, p_producer_id, first, marker), '' ORDER BY key)
                                    FILTER (WHERE NOT p_commits), '') AS aborts
                  FROM part GROUP BY 1 ORDER BY 1) AS r
    ), moved AS (
        UPDATE partition_heads h
           SET high_watermark = marker + 1, first_open_offset = open,
               open_extents = h.open_extents + 1,
               appended_bytes = h.appended_bytes + marker_bytes(),
               updates = h.updates + 1, update_block = update_block(h.updates + 1)
          FROM part
         WHERE h.ctid = part.row
        RETURNING h.partition_key, h.open_extents
    )
    SELECT array_agg(partition_key) FILTER (WHERE open_extents >= time_block_extents(partition_key))
      INTO v_full
      FROM moved WHERE (SELECT count(*) FROM announced) >= 0;
    IF v_full IS NOT NULL THEN
        PERFORM close_time_blocks(v_full);
    END IF;
END $$;

-- The pending offsets of a producer become its groups', as commit_group_offsets would store them.
-- Locks: the offsets, by (group, partition); the caller holds their partitions' rows. Idempotent: the same again.
-- Cost: one upsert per offset.
CREATE OR REPLACE FUNCTION store_pending_offsets(p_producer_id bigint) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO group_offsets AS g
           (group_id, partition_key, committed_offset, leader_epoch, metadata, committed_at, expiry_slot)
    SELECT o.group_id, o.partition_key, o.committed_offset, o.leader_epoch, o.metadata, wall_time(),
           expiry_slot(wall_time())
      FROM pending_offsets o
     WHERE o.producer_id = p_producer_id
       AND EXISTS (SELECT FROM consumer_groups c WHERE c.group_id = o.group_id)
       AND (is_rendered_key(o.partition_key)
            OR EXISTS (SELECT FROM partitions p WHERE p.partition_key = o.partition_key))
     ORDER BY o.group_id, o.partition_key
    ON CONFLICT (group_id, partition_key) DO UPDATE
       SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
           metadata = excluded.metadata, committed_at = excluded.committed_at, expiry_slot = excluded.expiry_slot,
           link = NULL
$$;

-- The file id of a marker's extent: metastore.transactions.markers.marker_file_id.
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION marker_file_id(p_producer_id bigint, p_epoch smallint, p_commits boolean) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN encode('\x00000000'::bytea || int2send(p_epoch) || int2send(p_commits::int::smallint)
              || int8send(p_producer_id), 'hex')::uuid;
