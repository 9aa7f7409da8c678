-- The tables with the most dead rows: name, live rows, dead rows, bytes with indexes.
-- Locks: none. Idempotent: reads only. Cost: statistics of this database's tables; the counts are estimates.
SELECT relname::text, n_live_tup, n_dead_tup, pg_total_relation_size(relid)
  FROM pg_stat_user_tables
 WHERE schemaname = current_schema()
 ORDER BY n_dead_tup DESC
 LIMIT 5
