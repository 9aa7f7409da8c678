-- How transactions ended that is not in the bucket yet; a partition that is gone, and was purged, has no topic.
-- Locks: none. Idempotent: reads only. Cost: one row, and an index probe, per answer.
SELECT o.partition_key, o.marker_offset, coalesce(p.topic_id, d.topic_id),
       coalesce(p.partition_index, d.partition_index), o.producer_id, o.epoch, o.end_sequence, o.marker_offset,
       o.ended_ms, o.commits
  FROM transaction_outcomes o
  LEFT JOIN partitions p USING (partition_key)
  LEFT JOIN deleted_partitions d USING (partition_key)
 ORDER BY o.partition_key, o.marker_offset
 LIMIT %(most)s::int
