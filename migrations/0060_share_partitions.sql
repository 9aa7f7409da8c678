-- What share groups have done with the records of each partition (decisions/0086). A row is written by the group's
-- coordinator, under its epoch, before it answers the acknowledgements in it; it goes with the partition or the group.
CREATE TABLE share_partitions (
    group_id           text    NOT NULL,
    partition_key      bigint  NOT NULL,
    start_offset       bigint  NOT NULL,   -- every record before it is done
    kept               bytea   NOT NULL,   -- from it on: what is done or was acquired; agent/groups/share/saved.py
    coordinator_epoch  bigint  NOT NULL,   -- with revision: of the write that is here; an earlier one that arrives late
    revision           bigint  NOT NULL,   -- is not stored
    PRIMARY KEY (group_id, partition_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX share_partitions_partition ON share_partitions (partition_key);  -- a topic's deletion finds its rows
