-- The partitions that a link copies, for the workers that do so: where each log ends, and at which leader epoch of the source.
SELECT p.partition_key, p.topic_id, t.name, p.partition_index, l.source_id, p.log_start_offset, h.high_watermark,
       last_linked_epoch(p.partition_key), l.promotion, s.problem
  FROM linked_topics l
  JOIN topics t USING (topic_id)
  JOIN partitions p USING (topic_id)
  JOIN linked_partitions s USING (partition_key)
 CROSS JOIN LATERAL (SELECT high_watermark FROM partition_heads WHERE partition_key = p.partition_key
                      ORDER BY update_block DESC LIMIT 1) AS h
 WHERE l.link = %(link)s AND p.state = state_linked()
 ORDER BY p.partition_key
