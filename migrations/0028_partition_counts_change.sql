-- Counts change in both directions (decisions/0049). Metadata.format 4 gates what is written here.
-- What a partition takes: metastore.api.topics.PartitionState. 2 and 3 are reserved for a topic that doubles.
ALTER TABLE partitions ADD COLUMN state smallint NOT NULL DEFAULT 0;
-- Where a removed partition's index goes on if it is used again; goes with its topic.
CREATE TABLE removed_partitions (
    partition_key   bigint PRIMARY KEY,
    topic_id        uuid   NOT NULL,
    high_watermark  bigint NOT NULL,
    leader_epoch    int    NOT NULL
);
CREATE INDEX removed_partitions_topic ON removed_partitions (topic_id);
-- Until now keys were placed by modulo of the count: linear hashing with this initial count.
UPDATE topics SET initial_partition_count = undeleted_partition_count
 WHERE initial_partition_count < undeleted_partition_count;
