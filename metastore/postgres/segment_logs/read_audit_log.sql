-- The ends of an audit partition, and its rows from an offset on. One row with NULLs if there is nothing to read.
-- Locks: none. Idempotent: reads only. Cost: the rows of the page, by the primary key.
SELECT h.next_offset, h.audit_start, h.next_audit_offset, e.*
  FROM remote_log_heads h
  LEFT JOIN LATERAL (
    SELECT metadata_partition, audit_offset, log_offset, api_key, topic_id, partition_index, end_offset, epoch, state,
           cause, broker_id, event_ms, segment_id, file_id, job_id, start_offset, leader_epoch, max_timestamp, size
      FROM remote_segment_events
     WHERE metadata_partition = h.metadata_partition
       AND audit_offset >= greatest(%(start_offset)s::bigint, h.audit_start)
     ORDER BY audit_offset LIMIT %(row_limit)s::int
  ) e ON true
 WHERE h.metadata_partition = %(metadata_partition)s::smallint
 ORDER BY e.audit_offset
