-- Locks, idempotence and cost: functions/create_partitions.sql.
SELECT create_partitions(
    %(expected_head)s::bigint, %(records)s::bytea[],
    %(topic_ids)s::uuid[], %(first_indexes)s::int[], %(counts)s::int[])
