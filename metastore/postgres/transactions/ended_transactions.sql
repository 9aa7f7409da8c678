-- How transactions ended that is not in the bucket yet; a partition that is gone has no topic.
-- Locks: none. Idempotent: reads only. Cost: one row, and an index probe, per answer.
SELECT o.partition_key, o.marker_offset, p.topic_id, p.partition_index, o.producer_id, o.epoch, o.end_sequence, o.marker_offset,
       o.ended_ms, o.commits
  FROM transaction_outcomes o
  LEFT JOIN partitions p USING (partition_key)
 ORDER BY o.partition_key, o.marker_offset
 LIMIT %(most)s::int
