-- A topic doubles under clients that know only the count (decisions/0049): metastore/partitions/splitting.py has the
-- rule. One row per parent, from the doubling on; states 2 and 3 of partitions are its parents and children.
CREATE TABLE partition_splits (
    parent_key         bigint PRIMARY KEY,
    child_key          bigint NOT NULL UNIQUE,
    topic_id           uuid   NOT NULL,
    producer_quiet_ms  bigint NOT NULL,
    boundary_quiet_ms  bigint NOT NULL,
    last_moved_ms      bigint NOT NULL,  -- when the last batch with a moved key came to the parent, or when it began
    boundary           bigint            -- the offset in the parent behind which it has no moved key; NULL: not yet
) WITH (fillfactor = 50);
CREATE INDEX partition_splits_topic ON partition_splits (topic_id);
-- What a split knows of producers.
CREATE TABLE split_producers (
    parent_key    bigint  NOT NULL,
    producer_id   bigint  NOT NULL,
    moved_ms      bigint  NOT NULL,      -- when its last batch with a moved key came to the parent, or its first one
                                         -- for the child
    has_switched  boolean NOT NULL DEFAULT false,
    PRIMARY KEY (parent_key, producer_id)
) WITH (fillfactor = 70);
