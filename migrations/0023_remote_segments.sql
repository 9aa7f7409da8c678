-- The lifecycle of remote segments (decisions/0046). A segment is one contiguous run of one partition's records in one
-- merged file. Extents remain the only statement of what is readable; a segment's row is the reference to its file.

-- Each lease of a job draws its epoch here, and so does each action that removes segments. Leases that are held now
-- have lower epochs: a number is never drawn twice for one job.
CREATE SEQUENCE segment_epochs AS int;
SELECT setval('segment_epochs', greatest((SELECT life FROM cluster) << 20, max(epoch) FILTER (WHERE epoch < 2147483647), 1))
  FROM jobs;

-- segments: how many keys hold a reference to the file. 0 for flush files and for merged files without keys.
ALTER TABLE segment_files ADD COLUMN segments int NOT NULL DEFAULT 0;
-- Merged files without keys: of a cluster before remote.log.metadata.compaction, or of a rebuilt index.
CREATE INDEX segment_files_unkeyed ON segment_files (file_id)
 WHERE level > 0 AND segments = 0 AND state = 0 AND dead_at IS NULL;

-- The extent's segment; NULL in a file without keys.
ALTER TABLE extents ADD COLUMN segment_end bigint, ADD COLUMN segment_epoch int;

-- The compacted projection: the latest record of each key. A row with tombstoned_at is a tombstone.
CREATE TABLE remote_segments (
    topic_id            uuid         NOT NULL,
    partition_index     int          NOT NULL,
    end_offset          bigint       NOT NULL,   -- of the last record, fixed by the plan
    epoch               int          NOT NULL,
    segment_id          uuid         NOT NULL,   -- one per attempt
    file_id             uuid         NOT NULL,
    partition_key       bigint       NOT NULL,
    start_offset        bigint       NOT NULL,
    leader_epoch        int          NOT NULL,   -- of all its records
    max_timestamp       bigint       NOT NULL,
    size                bigint       NOT NULL,   -- of its batches, in bytes
    state               smallint     NOT NULL,   -- SegmentState
    cause               smallint     NOT NULL,   -- SegmentCause: why it is in this state
    live_extents        int          NOT NULL,   -- 0 unless it is readable
    reference           smallint     NOT NULL,   -- ReferenceState: of this key to the file
    broker_id           int          NOT NULL,   -- -1: a process without a node id
    job_id              bigint,                  -- NULL: no job did it
    event_ms            bigint       NOT NULL,   -- of the latest record
    due_at              timestamptz,             -- since when janitor or cleanup have to look at it; NULL: readable
    tombstoned_at       timestamptz,
    metadata_partition  smallint     NOT NULL,
    log_offset          bigint       NOT NULL,   -- of the latest record in __remote_log_metadata
    PRIMARY KEY (topic_id, partition_index, end_offset, epoch)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
-- Only keys that are not live: the scans of janitor and cleanup cost what they find.
CREATE INDEX remote_segments_due ON remote_segments (state, due_at) WHERE due_at IS NOT NULL AND tombstoned_at IS NULL;
CREATE INDEX remote_segments_tombstones ON remote_segments (tombstoned_at) WHERE tombstoned_at IS NOT NULL;
-- Keys that wait for the deletion of their file's object.
CREATE INDEX remote_segments_awaited ON remote_segments (file_id) WHERE reference = 1;
-- The compacted topic in the order of its offsets.
CREATE UNIQUE INDEX remote_segments_log ON remote_segments (metadata_partition, log_offset);

-- The delete markers of partitions, in the same logs under the key topicId:partition.
CREATE TABLE remote_partitions (
    topic_id            uuid         NOT NULL,
    partition_index     int          NOT NULL,
    partition_key       bigint       NOT NULL UNIQUE,
    end_offset          bigint       NOT NULL,   -- the high watermark when it was deleted
    epoch               int          NOT NULL,
    state               smallint     NOT NULL,   -- PartitionDeleteState
    broker_id           int          NOT NULL,
    event_ms            bigint       NOT NULL,
    tombstoned_at       timestamptz,
    metadata_partition  smallint     NOT NULL,
    log_offset          bigint       NOT NULL,
    PRIMARY KEY (topic_id, partition_index)
);
CREATE UNIQUE INDEX remote_partitions_log ON remote_partitions (metadata_partition, log_offset);

-- The audit trail: every record but tombstones, in the order of its offsets.
CREATE TABLE remote_segment_events (
    metadata_partition  smallint     NOT NULL,
    audit_offset        bigint       NOT NULL,
    log_offset          bigint       NOT NULL,   -- of the same record in __remote_log_metadata
    api_key             smallint     NOT NULL,   -- Kafka's: 0 segment, 1 update, 2 partition delete
    topic_id            uuid         NOT NULL,
    partition_index     int          NOT NULL,
    end_offset          bigint       NOT NULL,
    epoch               int          NOT NULL,
    state               smallint     NOT NULL,   -- SegmentState, or PartitionDeleteState if api_key = 2
    cause               smallint     NOT NULL,
    broker_id           int          NOT NULL,
    event_ms            bigint       NOT NULL,
    segment_id          uuid,                    -- not of a partition
    file_id             uuid,
    job_id              bigint,
    start_offset        bigint,                  -- these only if api_key = 0
    leader_epoch        int,
    max_timestamp       bigint,
    size                bigint,
    PRIMARY KEY (metadata_partition, audit_offset)
);

-- The next offsets of both logs. A record's offsets are assigned under its row lock, which is held to the commit: a
-- reader never sees a later offset before an earlier one.
CREATE TABLE remote_log_heads (
    metadata_partition  smallint     PRIMARY KEY,
    next_offset         bigint       NOT NULL,
    next_audit_offset   bigint       NOT NULL,
    audit_start         bigint       NOT NULL    -- the audit's log start: its earlier records were removed
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
INSERT INTO remote_log_heads (metadata_partition, next_offset, next_audit_offset, audit_start)
SELECT number, 0, 0, 0 FROM generate_series(0, 49) AS number;
