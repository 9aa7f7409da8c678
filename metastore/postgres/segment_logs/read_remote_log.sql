-- The end of __remote_log_metadata's partition, and its rows from an offset on: segments, and delete markers (which
-- have no segment_id). One row with NULLs if there is nothing to read.
-- Locks: none. Idempotent: reads only. Cost: the rows of the page, by two indexes.
SELECT h.next_offset, h.audit_start, h.next_audit_offset, r.*
  FROM remote_log_heads h
  LEFT JOIN LATERAL (
    (SELECT s.topic_id, s.partition_index, s.end_offset, s.epoch, s.segment_id, s.file_id, s.partition_key, s.start_offset, s.leader_epoch,
           s.max_timestamp, s.size, s.state, s.cause, s.live_extents, s.reference, s.broker_id, s.job_id, s.event_ms,
           floor(extract(epoch FROM s.tombstoned_at) * 1000)::bigint AS tombstoned_ms, s.metadata_partition, s.log_offset
       FROM remote_segments s
      WHERE s.metadata_partition = %(metadata_partition)s::smallint AND s.log_offset >= %(start_offset)s::bigint
      ORDER BY s.log_offset LIMIT %(row_limit)s::int)
    UNION ALL
    (SELECT p.topic_id, p.partition_index, p.end_offset, p.epoch, NULL, NULL, p.partition_key, NULL, NULL,
            NULL, NULL, p.state, NULL, NULL, NULL, p.broker_id, NULL, p.event_ms,
            floor(extract(epoch FROM p.tombstoned_at) * 1000)::bigint, p.metadata_partition, p.log_offset
       FROM remote_partitions p
      WHERE p.metadata_partition = %(metadata_partition)s::smallint AND p.log_offset >= %(start_offset)s::bigint
      ORDER BY p.log_offset LIMIT %(row_limit)s::int)
    ORDER BY log_offset LIMIT %(row_limit)s::int
  ) r ON true
 WHERE h.metadata_partition = %(metadata_partition)s::smallint
 ORDER BY r.log_offset
