-- A partition's keys above an end offset, tombstones too.
-- Locks: none. Idempotent: reads only. Cost: the rows of the answer, by the primary key.
SELECT s.topic_id, s.partition_index, s.end_offset, s.epoch, s.segment_id, s.file_id, s.partition_key, s.start_offset, s.leader_epoch,
       s.max_timestamp, s.size, s.state, s.cause, s.live_extents, s.reference, s.broker_id, s.job_id, s.event_ms,
       floor(extract(epoch FROM s.tombstoned_at) * 1000)::bigint AS tombstoned_ms, s.metadata_partition, s.log_offset
  FROM remote_segments s
 WHERE s.topic_id = %(topic_id)s::uuid AND s.partition_index = %(partition_index)s::int
   AND s.end_offset > %(after)s::bigint
 ORDER BY s.end_offset, s.epoch LIMIT %(row_limit)s::int
