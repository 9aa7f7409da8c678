-- Note which configs of the source copies were given last.
-- Locks: the topics' rows. Idempotent: yes. Cost: an update per topic.
CREATE OR REPLACE FUNCTION note_linked_configs(p_topic_ids uuid[], p_configs text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE linked_topics l SET configs = t.configs::jsonb
      FROM unnest(p_topic_ids, p_configs) AS t (topic_id, configs) WHERE l.topic_id = t.topic_id
$$;
