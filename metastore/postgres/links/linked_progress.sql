-- All linked partitions, for people.
SELECT l.link, t.name, p.topic_id, p.partition_index, p.partition_key, p.log_start_offset, h.high_watermark,
       s.source_start, s.source_end, s.source_stable, coalesce(to_ms(s.seen_at), 0), coalesce(to_ms(s.current_at), 0),
       s.copied_bytes, s.lost, l.promotion, s.ready_end = h.high_watermark, s.problem
  FROM linked_topics l
  JOIN topics t USING (topic_id)
  JOIN partitions p USING (topic_id)
  JOIN linked_partitions s USING (partition_key)
 CROSS JOIN LATERAL (SELECT high_watermark FROM partition_heads WHERE partition_key = p.partition_key
                      ORDER BY update_block DESC LIMIT 1) AS h
 ORDER BY l.link, t.name, p.partition_index
