-- The aborted transactions of some partitions, packed, NULL if there are none, with their log starts.
-- Locks: none. Idempotent: reads only. Cost: one row per aborted transaction above the log start.
SELECT p.partition_key, p.log_start_offset,
       (SELECT string_agg(pack_aborted(a.partition_key, a.producer_id, a.first_offset, a.last_offset), ''
                          ORDER BY a.last_offset)
          FROM aborted_transactions a WHERE a.partition_key = p.partition_key)
  FROM partitions p
 WHERE p.partition_key = ANY (%(keys)s::bigint[])
