-- Put up to p_limit extents of a deleted topic back: metastore.api.restoring.RestoreOutcome, and how many.
-- restore_unfinished(): there may be more, ask again. restore_done(): all are back, and restore_topic may follow.
-- No reader sees them before that. Until a minute after the newest call nothing of the topic is purged; if no restore_topic
-- follows, housekeeping removes them again.
-- Locks: the topic's row; its partitions' entries, ascending; the files' rows, ascending.
-- Idempotent: a repeated call continues. Cost: two writes per extent; a probe per partition of the topic.
CREATE OR REPLACE FUNCTION revive_topic(p_topic_number bigint, p_limit int, OUT outcome int, OUT extents int)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_keys  bigint[];
    v_lasts bigint[];
BEGIN
    extents := 0;
    outcome := claim_restorable(p_topic_number);
    IF outcome <> restore_done() THEN
        RETURN;
    END IF;
    UPDATE restorable_topics SET restoring_until = wall_time() + interval '1 minute' WHERE topic_number = p_topic_number;
    SELECT array_agg(e.partition_key), array_agg(e.last_offset) INTO v_keys, v_lasts
      FROM (SELECT x.partition_key, x.last_offset
              FROM (SELECT (content ->> 'partition_key')::bigint AS key, (content ->> 'extents_from')::bigint AS start
                      FROM deleted_topic_rows
                     WHERE topic_number = p_topic_number AND of_table = 'partitions') AS p
             CROSS JOIN LATERAL (SELECT partition_key, last_offset FROM removed_extents
                                  WHERE partition_key = p.key AND last_offset >= p.start
                                  ORDER BY last_offset LIMIT p_limit) AS x
             LIMIT p_limit) AS e;
    IF v_keys IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM deleted_partitions WHERE partition_key = ANY (v_keys) ORDER BY partition_key FOR UPDATE;
    UPDATE deleted_partitions SET is_emptied = false WHERE partition_key = ANY (v_keys) AND is_emptied;
    IF NOT revive_extents(v_keys, v_lasts) THEN
        outcome := restore_files_gone();
        RETURN;
    END IF;
    extents := cardinality(v_keys);
    outcome := restore_unfinished();
END $$;

-- Whether the topic can be restored: restore_done(), else why not.
-- Locks: the topic's row. Idempotent: yes. Cost: one row.
CREATE OR REPLACE FUNCTION claim_restorable(p_topic_number bigint) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_topic restorable_topics;
BEGIN
    SELECT * INTO v_topic FROM restorable_topics WHERE topic_number = p_topic_number FOR UPDATE;
    RETURN CASE WHEN NOT FOUND THEN restore_gone()
                WHEN v_topic.life <> cluster_life() THEN restore_another_life()
                WHEN v_topic.restoring_until < wall_time()
                     AND v_topic.deleted_at < wall_time() - cluster_interval('file.delete.delay.ms') THEN restore_gone()
                ELSE restore_done() END;
END $$;
