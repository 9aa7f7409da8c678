-- What the delete marker of a partition says (decisions/0046). NULL: deleted before there were markers.
ALTER TABLE deleted_partitions
    ADD COLUMN topic_id         uuid,
    ADD COLUMN partition_index  int,
    ADD COLUMN end_offset       bigint;
-- Reserved ids, and keys that a partition without rows left behind: few at any time.
CREATE INDEX segment_files_reserved ON segment_files (committed_at) WHERE state = 4;
CREATE INDEX remote_partitions_open ON remote_partitions (partition_key) WHERE tombstoned_at IS NULL;
