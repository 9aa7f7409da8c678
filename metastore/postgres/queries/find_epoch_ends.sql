-- Locks, idempotence and cost: functions/find_epoch_ends.sql.
SELECT known, leader_epoch, end_offset FROM find_epoch_ends(%(keys)s::bigint[], %(epochs)s::int[])
