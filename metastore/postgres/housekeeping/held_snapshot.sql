-- How many transactions this database can not clean up behind, because a session, a standby, a replication slot or a
-- prepared transaction still holds an older snapshot. 0 when the oldest snapshot is the newest transaction.
-- Locks: none. Idempotent: reads only. Cost: one row per session, slot and prepared transaction. Every role may read
-- these columns.
SELECT greatest(
    (SELECT max(greatest(age(backend_xmin), age(backend_xid))) FROM pg_stat_activity
      WHERE (datname = current_database() OR backend_type = 'walsender')
        AND backend_type <> 'autovacuum worker' AND pid <> pg_backend_pid()),
    (SELECT max(greatest(age(xmin), age(catalog_xmin))) FROM pg_replication_slots),
    (SELECT max(age(transaction)) FROM pg_prepared_xacts WHERE database = current_database()),
    0)
