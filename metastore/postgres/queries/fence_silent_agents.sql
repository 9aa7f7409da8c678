-- Locks, idempotence and cost: functions/fence_silent_agents.sql.
SELECT fence_silent_agents(%(controller_epoch)s::bigint, %(session_timeout_ms)s::bigint * interval '1 ms')
