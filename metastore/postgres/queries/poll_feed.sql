-- Locks, idempotence and cost: functions/poll_feed.sql.
SELECT incarnation_id, now_ms, metadata_offset, shards, heads, row_shards, row_seqs, row_kinds, row_payloads
  FROM poll_feed(%(shards)s::smallint[], %(seqs)s::bigint[]);
