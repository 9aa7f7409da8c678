-- Locks, idempotence and cost: functions/list_offsets.sql.
SELECT known, found_offset, leader_epoch, extent
  FROM list_offsets(%(keys)s::bigint[], %(timestamps)s::bigint[]);
