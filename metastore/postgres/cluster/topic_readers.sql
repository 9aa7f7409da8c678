-- The groups with an offset in a topic, share groups that began in it, and groups with members that consume it; kind is
-- NULL for a group that was never saved.
-- late: how many of the topic's split partitions have a boundary that the group has not committed up to. A share group
-- does not wait for boundaries.
-- Locks: none. Idempotent: reads only. Cost: O(groups) rows, and the offsets in the topic.
WITH stored AS MATERIALIZED (
    SELECT o.group_id, o.partition_key, o.committed_offset
      FROM partitions p JOIN group_offsets o USING (partition_key)
     WHERE p.topic_id = %(topic_id)s::uuid
), readers AS (
    SELECT group_id FROM stored
     UNION
    SELECT s.group_id FROM partitions p JOIN share_partitions s USING (partition_key)
     WHERE p.topic_id = %(topic_id)s::uuid
     UNION
    SELECT g.group_id FROM consumer_groups g JOIN topics t ON t.topic_id = %(topic_id)s::uuid
     WHERE g.state <> 'Empty' AND t.name = ANY (g.subscribed)
)
SELECT r.group_id, CASE WHEN g.saved <> '' THEN g.kind END, coalesce(g.state, 'Empty'),
       CASE WHEN g.kind = 'share' THEN 0 ELSE l.late::int END
  FROM readers r
  LEFT JOIN consumer_groups g USING (group_id)
 CROSS JOIN LATERAL (
        SELECT count(*) AS late
          FROM partition_splits s
          JOIN partitions p ON p.partition_key = s.parent_key
          LEFT JOIN stored o ON o.group_id = r.group_id AND o.partition_key = s.parent_key
         WHERE s.topic_id = %(topic_id)s::uuid AND s.boundary > greatest(o.committed_offset, p.log_start_offset)) AS l
 ORDER BY r.group_id
