-- What a share group has done in the partitions that are there, with their high watermarks: no state can be of later
-- records.
-- Locks: none; one snapshot. Idempotent: reads only. Cost: the group's own rows, two look-ups each.
SELECT s.partition_key, s.start_offset, s.kept, h.high_watermark, s.begun_offset
  FROM share_partitions s
  JOIN partitions p USING (partition_key)
 CROSS JOIN LATERAL (SELECT max(high_watermark) AS high_watermark FROM partition_heads
                      WHERE partition_key = s.partition_key) AS h
 WHERE s.group_id = %(group_id)s::text
 ORDER BY s.partition_key
