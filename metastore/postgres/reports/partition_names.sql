-- Which topic's partition each key is; keys of deleted partitions are left out.
-- Locks: none. Idempotent: reads only. Cost: an index probe per key.
SELECT p.partition_key, p.topic_id, p.partition_index
  FROM partitions p WHERE p.partition_key = ANY (%(keys)s::bigint[])
