-- A topic halves under clients that know only the count (decisions/0052): metastore/partitions/merging.py has the rule.
-- One row per topic from the request until it is settled.
CREATE TABLE topic_halvings (
    topic_id             uuid   PRIMARY KEY,
    partition_count      int    NOT NULL,           -- after it
    excluded_groups      text[] NOT NULL,           -- whose commits nothing waits for
    lag_most             bigint NOT NULL,
    pause_most_ms        bigint NOT NULL,
    pause_again_ms       bigint NOT NULL,
    show_after_ms        bigint NOT NULL,
    settle_after_ms      bigint NOT NULL,
    begun_ms             bigint NOT NULL,
    shown_ms             bigint                     -- when the lower count was shown; NULL: not yet
);
-- One row per child, from the request until the topic doubles again; states 4 to 6 of partitions are paused children,
-- aliases, and parents with a merge that is not settled.
CREATE TABLE partition_merges (
    child_key          bigint   PRIMARY KEY,
    parent_key         bigint   NOT NULL,           -- the partition that gets what comes for the child
    topic_id           uuid     NOT NULL,
    phase              smallint NOT NULL,           -- merging.py's MergePhase
    since_ms           bigint   NOT NULL,           -- when the phase began; 0: the first one, which waits for nothing
    pause_most_ms      bigint   NOT NULL,
    producer_quiet_ms  bigint   NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX partition_merges_parent ON partition_merges (parent_key);
CREATE INDEX partition_merges_topic ON partition_merges (topic_id);
-- What a merge knows of producers.
CREATE TABLE merge_producers (
    child_key     bigint  NOT NULL,
    producer_id   bigint  NOT NULL,
    child_ms      bigint  NOT NULL,                 -- when its last batch for the child came, or its first one with a
                                                    -- moved key for the parent
    has_switched  boolean NOT NULL DEFAULT false,
    PRIMARY KEY (child_key, producer_id)
) WITH (fillfactor = 70);
