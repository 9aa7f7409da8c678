-- Transactional ids with a transaction that is open for longer than its timeout, the oldest first; and the clock.
-- Locks: none. Idempotent: reads only. Cost: one index range of the open transactions.
SELECT transactional_id, wall_ms()
  FROM transactions
 WHERE begun_at IS NOT NULL AND to_ms(begun_at) + timeout_ms <= wall_ms()
 ORDER BY begun_at
 LIMIT %(most)s::int
