-- A partition's delete marker.
-- Locks: none. Idempotent: reads only. Cost: one row by the primary key.
SELECT topic_id, partition_index, end_offset, epoch, state, broker_id, event_ms,
       floor(extract(epoch FROM tombstoned_at) * 1000)::bigint, metadata_partition, log_offset
  FROM remote_partitions
 WHERE topic_id = %(topic_id)s::uuid AND partition_index = %(partition_index)s::int
