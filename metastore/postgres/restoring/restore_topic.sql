-- Bring a deleted topic back under a name, once revive_topic has put its extents back:
-- metastore.api.restoring.RestoreOutcome; unless it is restore_done(), nothing happened.
-- In one transaction: the topic's records, and its rows in all tables as they were deleted, but for
-- - the leader epochs of its partitions, which the caller has raised: p_indexes and p_epochs;
-- - transactions that were open: one that is open still continues, the others end aborted in the topic's partitions.
-- Groups that have gone since come back without members, for their offsets.
-- Agents have dropped what they knew of the partitions when they heard of the deletion; they ask the primary again.
-- Locks: metadata_head; the topic's row; its groups' rows, by name; its partitions' entries, ascending; their commit
-- shards; the open transactions, by producer id.
-- Idempotent: a repeated call finds the head moved. Cost: a row per row kept; a probe or two per partition.
CREATE OR REPLACE FUNCTION restore_topic(
    p_expected_head bigint, p_topic_number bigint, p_name text, p_records bytea[], p_indexes int[], p_epochs int[]
) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_keys bigint[];
BEGIN
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN restore_head_moved();
    ELSIF claim_restorable(p_topic_number) <> restore_done() THEN
        RETURN claim_restorable(p_topic_number);
    ELSIF EXISTS (SELECT FROM topics WHERE name = p_name) THEN
        RETURN restore_name_taken();
    ELSIF EXISTS (SELECT FROM deleted_topic_rows p
                   CROSS JOIN LATERAL (SELECT FROM removed_extents
                                        WHERE partition_key = (p.content ->> 'partition_key')::bigint
                                          AND last_offset >= (p.content ->> 'extents_from')::bigint LIMIT 1) AS e
                   WHERE p.topic_number = p_topic_number AND p.of_table = 'partitions') THEN
        RETURN restore_unfinished();
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);
    PERFORM revive_groups(p_topic_number);
    UPDATE deleted_topic_rows SET content = content || jsonb_build_object('name', p_name)
     WHERE topic_number = p_topic_number AND of_table = 'topics';
    UPDATE deleted_topic_rows SET content = content || jsonb_build_object('resource_name', p_name)
     WHERE topic_number = p_topic_number AND of_table = 'configs';
    UPDATE deleted_topic_rows r SET content = content || jsonb_build_object('leader_epoch', e.epoch)
      FROM unnest(p_indexes, p_epochs) AS e (index, epoch)
     WHERE r.topic_number = p_topic_number AND r.of_table = 'partitions'
       AND (r.content ->> 'partition_index')::int = e.index;
    PERFORM put_rows_back(p_topic_number, of_table)
       FROM (VALUES ('topics'), ('configs'), ('partitions'), ('partition_heads'), ('group_offsets'),
                    ('share_partitions'), ('topic_halvings'), ('removed_partitions'), ('cleaned_partitions'),
                    ('split_producers'), ('partition_splits'), ('merge_producers'), ('partition_merges')) AS t (of_table);
    UPDATE partitions p SET shard = commit_shard(p.partition_key, c.commit_shards)
      FROM cluster c, restorable_topics r
     WHERE r.topic_number = p_topic_number AND p.topic_id = r.topic_id
       AND p.shard <> commit_shard(p.partition_key, c.commit_shards);  -- they grew meanwhile
    SELECT array_agg(partition_key ORDER BY partition_key) INTO v_keys
      FROM partitions JOIN restorable_topics USING (topic_id) WHERE topic_number = p_topic_number;

    PERFORM lock_shards(array_agg(DISTINCT shard)) FROM partitions WHERE partition_key = ANY (v_keys);
    PERFORM revive_transactions(p_topic_number);
    PERFORM abort_in_restored(p_topic_number);
    DELETE FROM deleted_partitions WHERE partition_key = ANY (v_keys);
    DELETE FROM deleted_topics WHERE topic_number = p_topic_number;
    DELETE FROM deleted_topic_rows WHERE topic_number = p_topic_number;
    DELETE FROM restorable_topics WHERE topic_number = p_topic_number;
    RETURN restore_done();
END $$;

-- Insert the rows of one table that a deletion has kept. A column that is newer than the row has its default.
-- Locks: the rows. Idempotent: a row that is there stays as it is. Cost: O(rows).
CREATE OR REPLACE FUNCTION put_rows_back(p_topic_number bigint, p_table text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_columns text;
BEGIN
    SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) INTO v_columns
      FROM (SELECT content FROM deleted_topic_rows
             WHERE topic_number = p_topic_number AND of_table = p_table LIMIT 1) AS first_row
      JOIN pg_attribute a ON a.attrelid = p_table::regclass AND a.attnum > 0 AND NOT a.attisdropped
                          AND first_row.content ? a.attname::text;
    IF v_columns IS NOT NULL THEN
        EXECUTE format('INSERT INTO %1$I (%2$s) SELECT %2$s'
                       ' FROM (SELECT content FROM deleted_topic_rows WHERE topic_number = $1 AND of_table = $2) AS k,'
                       ' jsonb_populate_record(NULL::%1$I, k.content) ON CONFLICT DO NOTHING', p_table, v_columns)
          USING p_topic_number, p_table;
    END IF;
END $$;

-- The groups of the offsets and share states that come back, without members if they are gone; the offsets count as unused
-- from now on.
-- Locks: the groups' rows, by name. Idempotent: yes. Cost: O(groups and offsets).
CREATE OR REPLACE FUNCTION revive_groups(p_topic_number bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO consumer_groups (group_id, coordinator_epoch, node_id, saved, kind, empty_since, expiry_slot)
    SELECT content ->> 'group_id', 0, -1, ''::bytea,
           CASE WHEN bool_or(of_table = 'share_partitions') THEN 'share' ELSE 'classic' END, wall_time(),
           expiry_slot(wall_time())
      FROM deleted_topic_rows
     WHERE topic_number = p_topic_number AND of_table IN ('group_offsets', 'share_partitions')
     GROUP BY 1 ORDER BY 1
    ON CONFLICT (group_id) DO NOTHING;
    PERFORM FROM consumer_groups
      WHERE group_id IN (SELECT content ->> 'group_id' FROM deleted_topic_rows
                          WHERE topic_number = p_topic_number AND of_table IN ('group_offsets', 'share_partitions'))
      ORDER BY group_id FOR SHARE;
    UPDATE deleted_topic_rows
       SET content = content || jsonb_build_object('committed_at', wall_time(), 'expiry_slot', expiry_slot(wall_time()))
     WHERE topic_number = p_topic_number AND of_table = 'group_offsets';
END $$;

-- The open transactions that are open still get their partitions of the topic back, with what they would commit there for
-- groups; what is said of them goes from deleted_topic_rows.
-- Locks: the transactions' rows, by producer id; the caller holds the shards. Idempotent: yes. Cost: O(open transactions).
CREATE OR REPLACE FUNCTION revive_transactions(p_topic_number bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_open bigint[];
BEGIN
    v_open := array(
        SELECT t.producer_id FROM transactions t
         WHERE EXISTS (SELECT FROM deleted_topic_rows r
                        WHERE r.topic_number = p_topic_number AND r.of_table = 'transaction_partitions'
                          AND (r.content ->> 'producer_id')::bigint = t.producer_id
                          AND (r.content ->> 'producer_epoch')::int = t.producer_epoch
                          AND (r.content ->> 'begun_at')::timestamptz = t.begun_at)
         ORDER BY t.producer_id FOR NO KEY UPDATE);
    DELETE FROM deleted_topic_rows
     WHERE topic_number = p_topic_number AND of_table = 'pending_offsets'
       AND (content ->> 'producer_id')::bigint <> ALL (v_open);
    PERFORM put_rows_back(p_topic_number, 'pending_offsets');
    WITH going_on AS (
        DELETE FROM deleted_topic_rows
         WHERE topic_number = p_topic_number AND of_table = 'transaction_partitions'
           AND (content ->> 'producer_id')::bigint = ANY (v_open)
        RETURNING (content ->> 'producer_id')::bigint AS producer_id,
                  (content ->> 'partition_key')::bigint AS partition_key, (content ->> 'first_offset')::bigint AS first
    )
    INSERT INTO transaction_partitions (producer_id, partition_key, first_offset)
    SELECT producer_id, partition_key, first FROM going_on ORDER BY 1, 2 ON CONFLICT DO NOTHING;
    UPDATE transactions SET version = version + 1 WHERE producer_id = ANY (v_open);
END $$;

-- Abort what is left of transactions that were open when the topic was deleted and have ended since: a marker in each
-- partition with their data, as append_markers would write it under the next epoch. No reader has the partitions yet, so
-- no feed row says it.
-- Locks: none; the caller holds the shards. Idempotent: no. Cost: a few index probes per transaction and partition.
CREATE OR REPLACE FUNCTION abort_in_restored(p_topic_number bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now  bigint := wall_ms();
    v_full bigint[];
BEGIN
    WITH orphan AS MATERIALIZED (
        SELECT o.key, o.producer_id, o.epoch, o.first, p.leader_epoch,
               h.high_watermark + row_number() OVER later - 1 AS marker,
               least(lead(o.first) OVER later, g.first) AS open
          FROM (SELECT (content ->> 'partition_key')::bigint AS key, (content ->> 'producer_id')::bigint AS producer_id,
                       least(coalesce((content ->> 'producer_epoch')::int, 32766), 32766) + 1 AS epoch,
                       (content ->> 'first_offset')::bigint AS first
                  FROM deleted_topic_rows
                 WHERE topic_number = p_topic_number AND of_table = 'transaction_partitions') AS o
          JOIN partitions p ON p.partition_key = o.key
          JOIN partition_heads h ON h.partition_key = o.key
         CROSS JOIN LATERAL (SELECT min(first_offset) AS first FROM transaction_partitions WHERE partition_key = o.key) AS g
         WHERE o.first IS NOT NULL
        WINDOW later AS (PARTITION BY o.key ORDER BY o.first, o.producer_id)
    ), appended AS (
        INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                             max_timestamp, appended_at)
        SELECT key, marker, marker, marker_file_id(producer_id, epoch::smallint, false), v_now, marker_bytes(), leader_epoch,
               -1, wall_time()
          FROM orphan
    ), aborted AS (
        INSERT INTO aborted_transactions (partition_key, last_offset, first_offset, producer_id, stable_offset)
        SELECT key, marker, first, producer_id, coalesce(open, marker + 1) FROM orphan
    ), result AS (
        INSERT INTO transaction_outcomes (partition_key, marker_offset, producer_id, epoch, end_sequence, ended_ms,
                                          commits)
        SELECT key, marker, producer_id, greatest(s.epoch, a.epoch),
               CASE WHEN a.epoch IS NULL THEN s.next_sequence ELSE 2147483647 END, v_now, false
          FROM orphan
          LEFT JOIN LATERAL (SELECT epoch, next_sequence FROM producer_state
                              WHERE partition_key = orphan.key AND producer_id = orphan.producer_id
                              ORDER BY update_block DESC LIMIT 1) AS s ON true
         CROSS JOIN LATERAL (SELECT max(o.epoch) AS epoch
                               FROM partition_merges m
                               JOIN producer_state o ON o.partition_key = m.child_key
                                                    AND o.producer_id = orphan.producer_id
                              WHERE m.parent_key = orphan.key) AS a
         WHERE a.epoch IS NULL AND s.epoch IS NOT NULL OR orphan.epoch > greatest(s.epoch, a.epoch)
    ), moved AS (
        UPDATE partition_heads h
           SET high_watermark = h.high_watermark + o.markers, open_extents = h.open_extents + o.markers,
               appended_bytes = h.appended_bytes + o.markers * marker_bytes(),
               updates = h.updates + 1, update_block = update_block(h.updates + 1)
          FROM (SELECT key, count(*)::int AS markers FROM orphan GROUP BY key) AS o
         WHERE h.partition_key = o.key
        RETURNING h.partition_key, h.open_extents
    )
    SELECT array_agg(partition_key) FILTER (WHERE open_extents >= time_block_extents(partition_key)) INTO v_full FROM moved;
    UPDATE partition_heads h
       SET first_open_offset = (SELECT min(o.first_offset) FROM transaction_partitions o
                                 WHERE o.partition_key = h.partition_key)
     WHERE h.first_open_offset IS NOT NULL
       AND h.partition_key BETWEEN p_topic_number << 24 AND p_topic_number << 24 | 16777215;
    IF v_full IS NOT NULL THEN
        PERFORM close_time_blocks(v_full);
    END IF;
END $$;
