-- What compaction left aside: files with damaged extents that are live, and partitions that could not be cleaned by key:
-- what, and why.
-- Locks: none. Idempotent: reads only. Cost: a scan of damaged_extents, a probe for each, and a scan of cleaned_partitions.
SELECT 'file ' || d.file_id,
       'extents could not be read: ' || count(*) || ', last at ' || date_trunc('second', max(d.checked_at)) || ': ' || min(d.why)
  FROM damaged_extents d
  JOIN extents e ON e.partition_key = d.partition_key AND e.last_offset = d.last_offset
                AND e.file_id = d.file_id AND e.position = d.position
 GROUP BY d.file_id
UNION ALL
SELECT 'partition ' || t.name || '-' || p.partition_index, c.uncleanable_why
  FROM cleaned_partitions c JOIN partitions p USING (partition_key) JOIN topics t USING (topic_id)
 WHERE c.uncleanable_at IS NOT NULL
 ORDER BY 1
 LIMIT 20
