-- Locks, idempotence and cost: functions/delete_topics.sql.
SELECT delete_topics(%(expected_head)s::bigint, %(topic_ids)s::uuid[], %(records)s::bytea[])
