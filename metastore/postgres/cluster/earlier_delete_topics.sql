-- delete_topics for agents of the release before: what they delete cannot be restored.
-- Locks, idempotence, cost: as that.
CREATE OR REPLACE FUNCTION delete_topics(p_expected_head bigint, p_topic_ids uuid[], p_records bytea[]) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT delete_topics(p_expected_head, p_topic_ids, p_records, '{}', '{}')
$$;
