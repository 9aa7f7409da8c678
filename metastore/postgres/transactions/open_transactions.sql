-- How many transactions are open, since when the oldest is, how many are open for longer than their timeout, the oldest
-- of these, and the clock.
-- Locks: none. Idempotent: reads only. Cost: one index range of the open transactions.
SELECT count(*)::int, coalesce(wall_ms() - min(to_ms(begun_at)), 0)::bigint,
       (count(*) FILTER (WHERE to_ms(begun_at) + timeout_ms <= wall_ms()))::int,
       coalesce((array_agg(transactional_id ORDER BY begun_at)
                 FILTER (WHERE to_ms(begun_at) + timeout_ms <= wall_ms()))[:%(most)s::int], '{}'),
       wall_ms()
  FROM transactions
 WHERE begun_at IS NOT NULL
