-- Framed records from an offset on, with their offsets. The log is written under metadata_head's lock,
-- so what is visible has no gaps; what comes first tells whether the asked offset is still kept.
-- Locks: none. Idempotent: reads only. Cost: one index range, as many rows as asked for.
SELECT record_offset, record
  FROM metadata_log
 WHERE record_offset >= %(start_offset)s::bigint
 ORDER BY record_offset
 LIMIT %(record_count)s::bigint
