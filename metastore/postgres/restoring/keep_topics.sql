-- What a deletion keeps of topics, so that they can be restored: called in its transaction, before it deletes the rows.
-- In two steps: rows that no commit changes, and rows that the commit shards' locks protect.

-- Keep the topics that p_topics names, one element per record in both arrays, and those of their rows that no commit
-- changes. None if the cluster deletes files at once: then nothing could be restored.
-- Locks: none; the caller holds metadata_head, the partitions' rows, group offsets and share partitions. Idempotent: no.
-- Cost: a row per row kept.
CREATE OR REPLACE FUNCTION keep_topics(p_topics uuid[], p_records bytea[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF cluster_interval('file.delete.delay.ms') <= interval '0' THEN
        RETURN;
    END IF;
    INSERT INTO restorable_topics (topic_number, topic_id, name, deleted_at, life, records, partition_count,
                                   record_count, size)
    SELECT t.topic_number, t.topic_id, t.name, wall_time(), cluster_life(), k.records,
           (SELECT count(*) FROM partitions p WHERE p.topic_id = t.topic_id), 0, 0
      FROM (SELECT topic_id, array_agg(record ORDER BY number) AS records
              FROM unnest(p_topics, p_records) WITH ORDINALITY AS k (topic_id, record, number)
             GROUP BY topic_id) AS k
      JOIN topics t USING (topic_id);
    PERFORM keep_rows(p_topics, r.of_table, r.key_column)
       FROM (VALUES ('topics', 'topic_id'), ('partitions', 'partition_key'), ('group_offsets', 'partition_key'),
                    ('share_partitions', 'partition_key'), ('topic_halvings', 'topic_id'),
                    ('removed_partitions', 'topic_id')) AS r (of_table, key_column);
    INSERT INTO deleted_topic_rows (topic_number, of_table, content)
    SELECT k.topic_number, 'configs', to_jsonb(c)
      FROM restorable_topics k JOIN configs c ON c.resource_type = topic_resource() AND c.resource_name = k.name
     WHERE k.topic_id = ANY (p_topics);
END $$;

-- Keep the rows that commits change, and count what the topics have.
-- Locks: none; the caller holds the commit shards of the topics. Idempotent: no. Cost: a row per row kept.
CREATE OR REPLACE FUNCTION keep_heads(p_topics uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM keep_rows(p_topics, r.of_table, r.key_column)
       FROM (VALUES ('partition_heads', 'partition_key'), ('pending_offsets', 'partition_key'),
                    ('cleaned_partitions', 'partition_key'), ('split_producers', 'parent_key'),
                    ('partition_splits', 'parent_key'), ('merge_producers', 'child_key'),
                    ('partition_merges', 'child_key')) AS r (of_table, key_column);
    -- with what tells whether the transaction is still the same one
    INSERT INTO deleted_topic_rows (topic_number, of_table, content)
    SELECT k.topic_number, 'transaction_partitions',
           to_jsonb(o) || jsonb_build_object('begun_at', t.begun_at, 'producer_epoch', t.producer_epoch)
      FROM restorable_topics k
      JOIN partitions p USING (topic_id)
      JOIN transaction_partitions o USING (partition_key)
      LEFT JOIN transactions t USING (producer_id)
     WHERE k.topic_id = ANY (p_topics);
    UPDATE restorable_topics k SET record_count = s.records, size = s.bytes
      FROM (SELECT p.topic_id, sum(h.high_watermark - p.log_start_offset) AS records,
                   sum(h.appended_bytes - p.removed_bytes) AS bytes
              FROM partitions p JOIN partition_heads h USING (partition_key)
             WHERE p.topic_id = ANY (p_topics) GROUP BY p.topic_id) AS s
     WHERE k.topic_id = s.topic_id;
END $$;

-- Keep the rows of one table of those of the topics that are kept. p_key_column has the topic's id, or the key of one of
-- its partitions.
-- Locks, idempotence: as keep_topics. Cost: a row per row kept.
CREATE OR REPLACE FUNCTION keep_rows(p_topics uuid[], p_table text, p_key_column text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    EXECUTE format(
        'INSERT INTO deleted_topic_rows (topic_number, of_table, content)'
        ' SELECT k.topic_number, %1$L, to_jsonb(r) FROM restorable_topics k %2$s WHERE k.topic_id = ANY ($1)',
        p_table,
        CASE WHEN p_key_column = 'topic_id' THEN format('JOIN %I r USING (topic_id)', p_table)
             ELSE format('JOIN partitions p USING (topic_id) JOIN %I r ON r.%I = p.partition_key', p_table, p_key_column)
        END)
      USING p_topics;
END $$;
