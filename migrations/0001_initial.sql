-- The first schema. Hot tables state their own fillfactor and autovacuum settings: HOT updates need
-- free room in the page and no index on a column that changes.

CREATE TABLE cluster (
    singleton       boolean  PRIMARY KEY DEFAULT true CHECK (singleton),
    cluster_id      text     NOT NULL,              -- base64url UUID, as Kafka prints it
    incarnation_id  uuid     NOT NULL,              -- this metastore's life; a restore gets a new one
    commit_shards   smallint NOT NULL CHECK (commit_shards > 0)
);

-- The metadata log (C1): gap-free, framed records; appended under metadata_head's row lock.
CREATE TABLE metadata_head (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    next_offset  bigint  NOT NULL
);
CREATE TABLE metadata_log (
    record_offset  bigint      PRIMARY KEY,
    record         bytea       NOT NULL,
    appended_at    timestamptz NOT NULL
);

-- Projection of the log, written in the same transaction.
CREATE TABLE topics (
    topic_id                    uuid   PRIMARY KEY,
    topic_number                bigint NOT NULL UNIQUE,  -- the log offset of its TopicRecord
    name                        text   NOT NULL UNIQUE,
    initial_partition_count     int    NOT NULL,
    undeleted_partition_count   int    NOT NULL
);
CREATE TABLE partitions (
    partition_key     bigint   PRIMARY KEY,              -- topic_number << 24 | partition_index
    topic_id          uuid     NOT NULL,
    partition_index   int      NOT NULL,
    shard             smallint NOT NULL,
    leader_epoch      int      NOT NULL,
    log_start_offset  bigint   NOT NULL DEFAULT 0,
    UNIQUE (topic_id, partition_index)
);
CREATE TABLE configs (
    resource_type  smallint NOT NULL,
    resource_name  text     NOT NULL,
    name           text     NOT NULL,
    value          text     NOT NULL,
    PRIMARY KEY (resource_type, resource_name, name)
);
CREATE TABLE agents (
    node_id         int     PRIMARY KEY,
    incarnation_id  uuid    NOT NULL UNIQUE,
    broker_epoch    bigint  NOT NULL,                    -- the log offset of its RegisterBrokerRecord
    fenced          boolean NOT NULL,
    host            text    NOT NULL,
    port            int     NOT NULL,
    rack            text
);
-- Apart from agents: heartbeats write here several times a second, and nobody reads it in a commit.
CREATE TABLE agent_leases (
    node_id          int         PRIMARY KEY,
    last_contact_at  timestamptz NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- Tells the agents' silence from the metastore's own (functions/lease_watch.sql).
CREATE TABLE lease_watch (
    singleton        boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    last_contact_at  timestamptz NOT NULL,               -- of whoever holds no lease: refused registrations
    resumed_at       timestamptz NOT NULL                -- contacts resumed after everybody was silent
);

-- The commit. Lock order: commit shards ascending, then file ids.
CREATE TABLE commit_shards (
    shard  smallint PRIMARY KEY,
    seq    bigint   NOT NULL                             -- of the last feed row
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Apart from partitions: commits write only here, retention and swaps lock partitions' rows, so
-- that neither waits for the other.
CREATE TABLE partition_heads (
    partition_key       bigint PRIMARY KEY,
    high_watermark      bigint NOT NULL,
    max_timestamp       bigint NOT NULL DEFAULT -1,      -- of all that was ever appended
    open_extents        int    NOT NULL DEFAULT 0,       -- since the last time block
    open_max_timestamp  bigint NOT NULL DEFAULT -1       -- of these
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE TABLE segment_files (
    file_id        uuid        PRIMARY KEY,              -- the same unique key for commit and sweeper
    state          smallint    NOT NULL,                 -- 0 live, 1 condemned
    size           bigint      NOT NULL,
    live_bytes     bigint      NOT NULL,
    committed_at   timestamptz NOT NULL
);
CREATE TABLE extents (
    partition_key  bigint NOT NULL,
    last_offset    bigint NOT NULL,
    base_offset    bigint NOT NULL,
    file_id        uuid   NOT NULL,
    position       bigint NOT NULL,
    length         bigint NOT NULL,
    leader_epoch   int    NOT NULL,
    max_timestamp  bigint NOT NULL,
    PRIMARY KEY (partition_key, last_offset)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- Where timestamps lie, coarsely: a level 0 row covers some 100 extents up to last_offset, a row of
-- the next level 64 rows. max_timestamp is an upper bound: retention and compaction only remove records.
CREATE TABLE time_blocks (
    partition_key  bigint   NOT NULL,
    level          smallint NOT NULL,
    last_offset    bigint   NOT NULL,
    max_timestamp  bigint   NOT NULL,
    PRIMARY KEY (partition_key, level, last_offset)
);

CREATE TABLE producer_state (
    partition_key  bigint   NOT NULL,
    producer_id    bigint   NOT NULL,
    epoch          smallint NOT NULL,
    next_sequence  int      NOT NULL,
    ring           bytea    NOT NULL,  -- newest first, up to 5 of (base seq int4, last seq int4, base offset int8, append time int8)
    touched_hour   int      NOT NULL,  -- hours since the epoch: indexed, yet HOT but once an hour
    PRIMARY KEY (partition_key, producer_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX producer_state_touched ON producer_state (touched_hour);

CREATE TABLE producer_id_blocks (
    first_id   bigint      PRIMARY KEY,
    last_id    bigint      NOT NULL,
    leased_at  timestamptz NOT NULL
);

-- Two logs in eight time slots each. A slot is emptied with TRUNCATE before its turn comes again:
-- no DDL on the parent, no dead rows, no vacuum (which would only hold TRUNCATE up).
CREATE TABLE commit_log (
    slot     smallint NOT NULL,
    shard    smallint NOT NULL,
    seq      bigint   NOT NULL,
    kind     smallint NOT NULL,        -- metastore.values.FeedKind
    payload  bytea    NOT NULL,
    PRIMARY KEY (shard, seq, slot)     -- a reader knows shard and seq, and looks into every slot
) PARTITION BY LIST (slot);
CREATE TABLE commit_answers (
    slot     smallint NOT NULL,
    file_id  uuid     NOT NULL,
    answer   bytea    NOT NULL,        -- functions/packing.sql
    PRIMARY KEY (slot, file_id)
) PARTITION BY LIST (slot);
DO $$
BEGIN
    FOR slot IN 0..7 LOOP
        EXECUTE format('CREATE TABLE commit_log_%s PARTITION OF commit_log FOR VALUES IN (%s)'
                       ' WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)', slot, slot);
        EXECUTE format('CREATE TABLE commit_answers_%s PARTITION OF commit_answers FOR VALUES IN (%s)'
                       ' WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)', slot, slot);
    END LOOP;
END $$;
CREATE TABLE log_slots (
    name          text   PRIMARY KEY,  -- commit_log, commit_answers
    cleared_tick  bigint NOT NULL      -- ticks (slot lengths since the epoch) up to which slots are ready
);

-- What is left of deleted topics, for the janitor: no reader sees it, as partitions has no such key.
CREATE TABLE deleted_partitions (
    partition_key  bigint      PRIMARY KEY,
    deleted_at     timestamptz NOT NULL
);

CREATE TABLE consumer_groups (
    group_id           text   PRIMARY KEY,
    coordinator_epoch  bigint NOT NULL,
    node_id            int    NOT NULL,
    state              bytea  NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE group_offsets (
    group_id       text        NOT NULL,
    partition_key  bigint      NOT NULL,
    committed_offset bigint    NOT NULL,
    leader_epoch   int         NOT NULL,
    metadata       text        NOT NULL,
    committed_at   timestamptz NOT NULL,
    PRIMARY KEY (group_id, partition_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX group_offsets_partition ON group_offsets (partition_key);  -- a topic's deletion finds its rows
