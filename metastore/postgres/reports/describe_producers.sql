-- What partitions remember of their producers; append time as the newest entry of the ring holds it.
-- Locks: none. Idempotent: reads only. Cost: one row per producer of these partitions.
SELECT partition_key, producer_id, epoch, CASE next_sequence WHEN 0 THEN 2147483647 ELSE next_sequence - 1 END,
       ring_number(ring, 16)
  FROM producer_state
  JOIN partitions USING (partition_key)
 WHERE partition_key = ANY (%(keys)s::bigint[])
 ORDER BY partition_key, producer_id
