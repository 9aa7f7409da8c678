-- The deleted topics that can be restored, the newest deletion first: until_ms is NULL while the cluster has no
-- file.delete.delay.ms. Of one that p_topic_number names also its records; NULL: all topics, without records.
-- Locks: none. Idempotent: reads only. Cost: one row per topic.
SELECT r.topic_number, r.topic_id, r.name, to_ms(r.deleted_at),
       to_ms(r.deleted_at + cluster_interval('file.delete.delay.ms')), r.partition_count, r.record_count, r.size,
       r.life, cluster_life(),
       CASE WHEN r.topic_number = %(topic_number)s::bigint THEN r.records ELSE '{}' END
  FROM restorable_topics r
 WHERE r.topic_number = coalesce(%(topic_number)s::bigint, r.topic_number)
 ORDER BY r.deleted_at DESC
