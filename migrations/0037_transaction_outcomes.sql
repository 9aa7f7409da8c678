-- How transactions ended in each partition, until the bucket has it (decisions/0063): a rebuild from the bucket leaves
-- records of unknown outcome out.
CREATE TABLE transaction_outcomes (
    partition_key  bigint   NOT NULL,
    marker_offset  bigint   NOT NULL,
    producer_id    bigint   NOT NULL,
    epoch          smallint NOT NULL,                       -- of its batches
    end_sequence   int      NOT NULL,                       -- the next sequence after them
    ended_ms       bigint   NOT NULL,                       -- the marker's time
    commits        boolean  NOT NULL,
    PRIMARY KEY (partition_key, marker_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
