-- What one server says of itself, if several are named: whether it follows another one, where default_transaction_read_only
-- was set (empty: it is off), its position in the WAL in bytes, and whether it receives WAL now.
-- Locks: none. Idempotent: reads only. Cost: views in memory.
SELECT pg_is_in_recovery(),
       coalesce((SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only' AND setting = 'on'), ''),
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, '0/0')::bigint,
       EXISTS (SELECT FROM pg_stat_wal_receiver)
