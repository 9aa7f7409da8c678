-- The ends of an audit partition, and where it has the records from an offset on: the object of the bucket with the
-- first of them, or rows. One row with NULLs if there is nothing to read.
-- Locks: none. Idempotent: reads only. Cost: the rows of the page, by the primary keys, and the due objects before it.
SELECT h.next_offset, h.audit_start, h.next_audit_offset, a.*, e.*
  FROM remote_log_heads h
  LEFT JOIN LATERAL (
    SELECT metadata_partition, first_offset, last_offset, records, newest_ms, bytes, index_bytes, epoch
      FROM archived_audit
     WHERE metadata_partition = h.metadata_partition
       AND last_offset >= greatest(%(start_offset)s::bigint, h.audit_start) AND due_at IS NULL
     ORDER BY last_offset LIMIT 1
  ) a ON true
  LEFT JOIN LATERAL (
    SELECT metadata_partition, audit_offset, log_offset, api_key, topic_id, partition_index, end_offset, epoch, state,
           cause, broker_id, event_ms, segment_id, file_id, job_id, start_offset, leader_epoch, max_timestamp, size
      FROM remote_segment_events
     WHERE metadata_partition = h.metadata_partition AND a.last_offset IS NULL
       AND audit_offset >= greatest(%(start_offset)s::bigint, h.audit_start)
     ORDER BY audit_offset LIMIT %(row_limit)s::int
  ) e ON true
 WHERE h.metadata_partition = %(metadata_partition)s::smallint
 ORDER BY e.audit_offset
