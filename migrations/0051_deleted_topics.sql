-- A producer of a deleted topic may go on where it ended, if a topic of the same name is created again (decisions/0012).
-- One row for each topic that was deleted within the last producer.id.expiration.ms; topics deleted before are not here.
CREATE TABLE deleted_topics (
    topic_number  bigint      PRIMARY KEY,
    name          text        NOT NULL,
    deleted_at    timestamptz NOT NULL
);
CREATE INDEX deleted_topics_name ON deleted_topics (name, topic_number);
CREATE INDEX deleted_topics_deleted_at ON deleted_topics (deleted_at);
