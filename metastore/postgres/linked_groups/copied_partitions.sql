-- The partitions in which a link may write offsets of groups: its copies, and what were its copies.
SELECT p.partition_key, t.name, p.partition_index, l.source_id
  FROM linked_topics l JOIN topics t USING (topic_id) JOIN partitions p USING (topic_id)
 WHERE l.link = %(link)s
UNION ALL
SELECT p.partition_key, t.name, p.partition_index, l.source_id
  FROM promoted_partitions l JOIN topics t USING (topic_id) JOIN partitions p USING (partition_key)
 WHERE l.link = %(link)s
 ORDER BY 1
