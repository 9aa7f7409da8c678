-- A group's stored positions in partitions that are there: the asked ones, or all when keys is NULL. Also those that an
-- open transaction has in store for it: is_pending, with the position of now, or -1.
-- Locks: none; one snapshot. Idempotent: reads only. Cost: two index ranges of the group's own rows.
SELECT partition_key, coalesce(o.committed_offset, -1), coalesce(o.leader_epoch, -1), coalesce(o.metadata, ''),
       w.partition_key IS NOT NULL
  FROM (SELECT * FROM group_offsets WHERE group_id = %(group_id)s::text) AS o
  FULL JOIN (SELECT DISTINCT partition_key FROM pending_offsets WHERE group_id = %(group_id)s::text) AS w
       USING (partition_key)
  LEFT JOIN partitions p USING (partition_key)
 WHERE (p.partition_key IS NOT NULL OR is_rendered_key(partition_key))
   AND (%(keys)s::bigint[] IS NULL OR partition_key = ANY (%(keys)s::bigint[]))
 ORDER BY partition_key
