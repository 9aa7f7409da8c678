-- Locks, idempotence and cost: functions/expire_producer_state.sql.
SELECT expire_producer_state(%(expiration_ms)s::bigint, %(limit)s::int);
