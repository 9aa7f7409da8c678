-- A group's stored positions in partitions that are there: the asked ones, or all when keys is NULL.
-- Locks: none. Idempotent: reads only. Cost: one index range of the group's own rows.
SELECT o.partition_key, o.committed_offset, o.leader_epoch, o.metadata
  FROM group_offsets o
  LEFT JOIN partitions p USING (partition_key)
 WHERE o.group_id = %(group_id)s::text
   AND (p.partition_key IS NOT NULL OR is_rendered_key(o.partition_key))
   AND (%(keys)s::bigint[] IS NULL OR o.partition_key = ANY (%(keys)s::bigint[]))
 ORDER BY o.partition_key
