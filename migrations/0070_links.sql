-- Links: topics that are copies of another cluster's, with the same offsets (decisions/0110).
CREATE TABLE link_sources (
    link        text        PRIMARY KEY,
    cluster_id  text        NOT NULL,      -- of the first cluster that answered; empty: none has
    seen_at     timestamptz NOT NULL,
    problem     text        NOT NULL       -- why the source cannot be read; empty: it can
) WITH (fillfactor = 50);
-- What the sources have of the topics that links name, as of the last report.
CREATE TABLE found_topics (
    link          text   NOT NULL,
    name          text   NOT NULL,
    source_id     uuid   NOT NULL,
    partitions    int    NOT NULL,
    leader_epoch  int    NOT NULL,
    configs       jsonb  NOT NULL,
    problem       text   NOT NULL,
    PRIMARY KEY (link, name)
) WITH (fillfactor = 50);
CREATE TABLE linked_topics (
    topic_id   uuid      PRIMARY KEY,
    link       text      NOT NULL,
    source_id  uuid      NOT NULL,         -- the topic at the source: another one of the name is not this one
    promotion  smallint  NOT NULL          -- metastore.api.links.Promotion
) WITH (fillfactor = 50);
CREATE INDEX linked_topics_link ON linked_topics (link);
CREATE TABLE linked_partitions (
    partition_key  bigint       PRIMARY KEY,
    topic_id       uuid         NOT NULL,
    source_start   bigint       NOT NULL DEFAULT -1,
    source_end     bigint       NOT NULL DEFAULT -1,
    source_stable  bigint       NOT NULL DEFAULT -1,
    seen_at        timestamptz,
    current_at     timestamptz,            -- when the copy last had all that the source had
    ready_end      bigint       NOT NULL DEFAULT -1,  -- the log end that may be promoted; -1: none
    copied_bytes   bigint       NOT NULL DEFAULT 0,
    lost           bigint       NOT NULL DEFAULT 0,   -- offsets that the source no longer had
    problem        text         NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
CREATE INDEX linked_partitions_topic ON linked_partitions (topic_id);
