-- For how many seconds the oldest full block of the audit trail has waited in rows, of all metadata partitions; 0 if none
-- is full, and below metadata.format 4. A block is full with its last record.
-- Locks: none. Idempotent: reads only. Cost: as archivable_audit.
SELECT (greatest(max(wall_ms() - l.event_ms), 0) / 1000.0)::float8
  FROM remote_log_heads h
 CROSS JOIN LATERAL (SELECT e.audit_offset FROM remote_segment_events e
                      WHERE e.metadata_partition = h.metadata_partition ORDER BY e.audit_offset LIMIT 1) AS f
 CROSS JOIN LATERAL (SELECT e.event_ms FROM remote_segment_events e
                      WHERE e.metadata_partition = h.metadata_partition
                        AND h.next_audit_offset - f.audit_offset >= %(records)s::int
                      ORDER BY e.audit_offset OFFSET %(records)s::int - 1 LIMIT 1) AS l
 WHERE metadata_format() >= 4
