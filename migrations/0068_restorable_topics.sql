-- Deleted topics, and records below a log start, can be restored while their files are there (decisions/0103).

-- Extents that a log start, or the deletion of their topic, has removed: kept as long as their files' objects are, for
-- file.delete.delay.ms. No reader sees them.
CREATE TABLE removed_extents (
    partition_key  bigint      NOT NULL,
    last_offset    bigint      NOT NULL,
    base_offset    bigint      NOT NULL,
    file_id        uuid        NOT NULL,
    position       bigint      NOT NULL,
    length         bigint      NOT NULL,
    leader_epoch   int         NOT NULL,
    max_timestamp  bigint      NOT NULL,
    appended_at    timestamptz,
    segment_end    bigint,                 -- with segment_epoch: its remote segment's key, if that did not end with it
    segment_epoch  int,
    removed_at     timestamptz NOT NULL,
    life           int         NOT NULL,   -- of the metastore, when it was removed: none is restored in another one
    PRIMARY KEY (partition_key, last_offset)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX removed_extents_removed_at ON removed_extents (removed_at);

-- Deleted topics that can be restored. A topic that an agent of the release before has deleted is not here.
CREATE TABLE restorable_topics (
    topic_number     bigint      PRIMARY KEY,
    topic_id         uuid        NOT NULL,
    name             text        NOT NULL,
    deleted_at       timestamptz NOT NULL,
    life             int         NOT NULL,
    records          bytea[]     NOT NULL,   -- what the metadata log said of it, as in a snapshot; framed
    partition_count  int         NOT NULL,
    record_count     bigint      NOT NULL,   -- offsets from the log starts on
    size             bigint      NOT NULL,   -- bytes of its batches
    restoring_until  timestamptz NOT NULL DEFAULT '-infinity'  -- a restore is under way; after this time it counts as given up
);
-- Their rows in other tables, as they were deleted.
CREATE TABLE deleted_topic_rows (
    topic_number  bigint NOT NULL,
    of_table      text   NOT NULL,
    content       jsonb  NOT NULL
);
CREATE INDEX deleted_topic_rows_topic ON deleted_topic_rows (topic_number, of_table);

-- Whether the partition's extents are in removed_extents: nothing to do until its topic can no longer be restored.
ALTER TABLE deleted_partitions ADD COLUMN is_emptied boolean NOT NULL DEFAULT false;
CREATE INDEX deleted_partitions_to_empty ON deleted_partitions (partition_key) WHERE NOT is_emptied;
CREATE INDEX deleted_partitions_topic ON deleted_partitions (topic_id, partition_index);
