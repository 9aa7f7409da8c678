-- What the cluster's row says of this life, and what the server says of itself. LSNs as bytes of WAL.
-- feed_sum and metadata_head only grow within a life: a server that shows less was restored.
-- The inserted WAL is read after the snapshot was taken, so it has all commits that the snapshot shows. A crash may
-- lose what is inserted and not flushed (FlushedPosition of metastore/life/keeper.py).
-- Locks: none; one snapshot for all, but for the LSNs. Idempotent: reads only. Cost: a handful of rows.
SELECT c.cluster_id, c.life, c.incarnation_id, c.system_identifier, c.timeline,
       coalesce(c.database_oid, 0),
       (SELECT s.system_identifier FROM pg_control_system() AS s), server_timeline(), own_database(),
       (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
       (SELECT sum(seq)::bigint FROM commit_shards), (SELECT next_offset FROM metadata_head),
       (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint,
       CASE WHEN c.next_timeline = server_timeline() THEN c.next_incarnation_id END, c.bucket_id
  FROM cluster c
