-- Metadata partitions with enough rows for an object, and the first offset of these rows. None below metadata.format 4.
-- Locks: none. Idempotent: reads only. Cost: one index probe per metadata partition, and so many rows for each that has
-- them, or has a gap in its offsets from the beginning of a life.
SELECT h.metadata_partition, f.audit_offset
  FROM remote_log_heads h
 CROSS JOIN LATERAL (SELECT e.audit_offset FROM remote_segment_events e
                      WHERE e.metadata_partition = h.metadata_partition ORDER BY e.audit_offset LIMIT 1) AS f
 CROSS JOIN LATERAL (SELECT e.audit_offset FROM remote_segment_events e
                      WHERE e.metadata_partition = h.metadata_partition
                        AND h.next_audit_offset - f.audit_offset >= %(records)s::int
                      ORDER BY e.audit_offset OFFSET %(records)s::int - 1 LIMIT 1) AS l
 WHERE metadata_format() >= 4
 ORDER BY h.metadata_partition
