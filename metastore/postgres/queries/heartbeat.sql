-- Locks, idempotence and cost: functions/heartbeat.sql.
SELECT heartbeat(
    %(node_id)s::int, %(broker_epoch)s::bigint, %(want_fence)s::boolean,
    %(session_timeout_ms)s::bigint * interval '1 ms')
