-- Locks, idempotence and cost: functions/heartbeat.sql.
SELECT is_caught_up, is_fenced, should_shut_down, metadata_head, controller_id
  FROM heartbeat(
    %(node_id)s::int, %(broker_epoch)s::bigint, %(metadata_offset)s::bigint,
    %(want_fence)s::boolean, %(want_shut_down)s::boolean,
    %(session_timeout_ms)s::bigint * interval '1 ms', %(max_lag)s::bigint)
