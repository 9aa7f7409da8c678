-- Locks, idempotence and cost: functions/unregister_agent.sql.
SELECT unregister_agent(%(node_id)s::int, %(broker_epoch)s::bigint)
