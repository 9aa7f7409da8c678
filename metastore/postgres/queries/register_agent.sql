-- Locks, idempotence and cost: functions/register_agent.sql.
SELECT granted, node_id, broker_epoch
  FROM register_agent(
    %(node_id)s::int, %(incarnation_id)s::uuid, %(host)s::text, %(port)s::int, %(rack)s::text,
    %(record)s::bytea, %(session_timeout_ms)s::bigint * interval '1 ms')
