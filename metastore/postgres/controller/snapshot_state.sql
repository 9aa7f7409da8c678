-- What the newest snapshot leaves in the log: its end and age, and the records and bytes after it.
-- Locks: none. Idempotent: reads only. Cost: scans the log after the newest snapshot.
SELECT coalesce(s.end_offset, 0),
       coalesce(wall_ms() - floor(extract(epoch FROM coalesce(
           s.created_at, (SELECT appended_at FROM metadata_log ORDER BY record_offset LIMIT 1))) * 1000)::bigint, 0),
       h.next_offset - coalesce(s.end_offset, 0),
       (SELECT coalesce(sum(octet_length(l.record)), 0)::bigint
          FROM metadata_log l WHERE l.record_offset >= coalesce(s.end_offset, 0))
  FROM metadata_head h
  LEFT JOIN (SELECT end_offset, created_at FROM metadata_snapshots ORDER BY end_offset DESC LIMIT 1) s ON true
