-- Locks, idempotence and cost: functions/append_records.sql.
SELECT append_records(
    %(controller_epoch)s::bigint, %(expected_head)s::bigint, %(records)s::bytea[], %(format)s::int,
    %(topic_ids)s::uuid[], %(indexes)s::int[],
    %(feature_names)s::text[], %(feature_mins)s::smallint[], %(feature_maxs)s::smallint[],
    %(config_types)s::smallint[], %(config_resources)s::text[], %(config_names)s::text[], %(config_values)s::text[])
