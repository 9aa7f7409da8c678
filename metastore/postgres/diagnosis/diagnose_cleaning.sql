-- What compaction left aside: files that a merge could not read within the last day, and partitions that could not be
-- cleaned by key: what, and why.
-- Locks: none. Idempotent: reads only. Cost: a scan of segment_files and of cleaned_partitions.
SELECT 'file ' || file_id, 'a merge could not read it at ' || date_trunc('second', unreadable_at)
  FROM segment_files WHERE unreadable_at >= wall_time() - interval '1 day'
UNION ALL
SELECT 'partition ' || t.name || '-' || p.partition_index, c.uncleanable_why
  FROM cleaned_partitions c JOIN partitions p USING (partition_key) JOIN topics t USING (topic_id)
 WHERE c.uncleanable_at IS NOT NULL
 ORDER BY 1
 LIMIT 20
