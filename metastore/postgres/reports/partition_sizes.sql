-- The bytes of partitions' stored batches, in order; -1 for one that is gone.
-- Locks: none; one snapshot. Idempotent: reads only. Cost: two index probes per partition.
SELECT coalesce(h.appended_bytes - p.removed_bytes, -1)
  FROM unnest(%(keys)s::bigint[]) WITH ORDINALITY AS q (key, number)
  LEFT JOIN partitions p ON p.partition_key = q.key
  LEFT JOIN partition_heads h ON h.partition_key = p.partition_key
 ORDER BY number
