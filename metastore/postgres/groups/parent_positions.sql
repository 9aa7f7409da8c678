-- Where a group is in partitions that are split in two: each one's log start, the group's stored offset if any, and
-- where it has to begin in the child: NULL if it has an offset there, or if the child has no records of an earlier life.
-- Locks: none. Idempotent: reads only. Cost: five index look-ups per partition.
SELECT p.partition_key, p.log_start_offset, o.committed_offset,
       CASE WHEN own.partition_key IS NULL AND s.child_start > c.log_start_offset THEN s.child_start END
  FROM partitions p
  LEFT JOIN group_offsets o ON o.group_id = %(group_id)s::text AND o.partition_key = p.partition_key
  LEFT JOIN partition_splits s ON s.parent_key = p.partition_key
  LEFT JOIN partitions c ON c.partition_key = s.child_key
  LEFT JOIN group_offsets own ON own.group_id = %(group_id)s::text AND own.partition_key = s.child_key
 WHERE p.partition_key = ANY (%(parent_keys)s::bigint[])
 ORDER BY p.partition_key
