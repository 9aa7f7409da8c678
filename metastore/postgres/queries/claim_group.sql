-- Locks, idempotence and cost: functions/claim_group.sql.
SELECT refusal, coordinator_epoch, kind, state, protocol_type, subscribed, saved
  FROM claim_group(%(group_id)s::text, %(node_id)s::int, %(broker_epoch)s::bigint)
