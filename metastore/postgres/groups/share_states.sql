-- What share groups have done, of all groups, in pages; and what the newest life that wrote each row had found.
-- Locks: none; one snapshot for each page. Idempotent: reads only. Cost: the page, by the primary key.
SELECT group_id, partition_key, coordinator_epoch, revision, begun_offset, start_offset, kept,
       found_life, found_start, found_kept
  FROM share_partitions
 WHERE (group_id, partition_key) > (%(group_id)s::text, %(partition_key)s::bigint)
 ORDER BY group_id, partition_key
 LIMIT %(most)s::int
