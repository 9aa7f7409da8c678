-- Topics of which the number of partitions is about to grow: no bulk write is decided for them for a while, so that what
-- was decided before can be completed (announce_counts.sql).
CREATE TABLE announced_counts (
    topic_id      uuid   PRIMARY KEY,
    announced_ms  bigint NOT NULL
);
