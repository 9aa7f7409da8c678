-- Transactions (decisions/0060): what an agent of transaction.version 1 or 2 writes.
-- One row per transactional id; metastore/transactions/state.py says what it means.
CREATE TABLE transactions (
    transactional_id      text        PRIMARY KEY,
    producer_id           bigint      NOT NULL UNIQUE,
    producer_epoch        smallint    NOT NULL,
    state                 smallint    NOT NULL,             -- TransactionState
    timeout_ms            int         NOT NULL,
    previous_producer_id  bigint      NOT NULL,             -- -1: none
    previous_epoch        smallint    NOT NULL,
    groups                text[]      NOT NULL,             -- with offsets in the open transaction
    version               bigint      NOT NULL,             -- rises with each change of the row or of its partitions
    begun_at              timestamptz,                      -- of the open transaction; NULL: none is open
    changed_at            timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX transactions_open ON transactions (begun_at) WHERE begun_at IS NOT NULL;
-- The partitions of open transactions.
CREATE TABLE transaction_partitions (
    producer_id    bigint NOT NULL,
    partition_key  bigint NOT NULL,
    first_offset   bigint,                                  -- NULL: it got no data yet
    PRIMARY KEY (producer_id, partition_key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX transaction_partitions_first ON transaction_partitions (partition_key, first_offset);
-- Positions of consumer groups that an open transaction commits with its records.
CREATE TABLE pending_offsets (
    producer_id       bigint NOT NULL,
    group_id          text   NOT NULL,
    partition_key     bigint NOT NULL,
    committed_offset  bigint NOT NULL,
    leader_epoch      int    NOT NULL,
    metadata          bytea  NOT NULL,
    PRIMARY KEY (producer_id, group_id, partition_key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX pending_offsets_group ON pending_offsets (group_id, partition_key);
-- What readers must skip: the records of a producer from its first offset to its abort marker.
CREATE TABLE aborted_transactions (
    partition_key  bigint NOT NULL,
    last_offset    bigint NOT NULL,                         -- of the marker
    first_offset   bigint NOT NULL,
    producer_id    bigint NOT NULL,
    stable_offset  bigint NOT NULL,                         -- the partition's, after this end
    PRIMARY KEY (partition_key, last_offset)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
-- The lowest first offset of an open transaction of the partition; NULL: none is open.
ALTER TABLE partition_heads ADD COLUMN first_open_offset bigint;
