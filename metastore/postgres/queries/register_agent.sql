-- Locks, idempotence and cost: functions/register_agent.sql.
SELECT refusal, detail, node_id, broker_epoch
  FROM register_agent(
    %(node_id)s::int, %(incarnation_id)s::uuid, %(host)s::text, %(port)s::int, %(rack)s::text,
    %(record)s::bytea, %(session_timeout_ms)s::bigint * interval '1 ms', %(cluster_id)s::text,
    %(feature_names)s::text[], %(feature_mins)s::smallint[], %(feature_maxs)s::smallint[])
