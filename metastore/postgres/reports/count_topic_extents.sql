-- How many extents a topic has, for benchmarks: never on a request's path.
-- Locks: none. Idempotent: reads only. Cost: scans the extents' primary key.
SELECT count(*)
FROM extents
WHERE partition_key >> 24 = (SELECT topic_number FROM topics WHERE name = %(topic)s);
