-- Locks, idempotence and cost: functions/create_topics.sql.
SELECT create_topics(
    %(expected_head)s::bigint, %(records)s::bytea[],
    %(topic_ids)s::uuid[], %(topic_numbers)s::bigint[], %(names)s::text[], %(counts)s::int[],
    %(config_topics)s::text[], %(config_names)s::text[], %(config_values)s::text[])
