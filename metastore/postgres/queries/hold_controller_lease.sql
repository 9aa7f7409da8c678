-- Locks, idempotence and cost: functions/controller_lease.sql.
SELECT controller_id, controller_epoch, is_own
  FROM hold_controller_lease(
    %(controller_id)s::int, %(incarnation_id)s::uuid, %(lease_ms)s::bigint * interval '1 ms')
