-- Offsets of groups that links copy, and configs of linked topics that follow the source (decisions/0111).
ALTER TABLE group_offsets ADD COLUMN link text;  -- the link that copied it; null: committed or set here, no link writes it
-- The source's groups that links name. A row that a coordinator asks with may be of a group that the source does not have.
CREATE TABLE linked_groups (
    link       text         NOT NULL,
    group_id   text         NOT NULL,
    kind       text         NOT NULL,        -- Kafka's type at the source; empty: it was not in a report yet
    state      text         NOT NULL,        -- Kafka's state at the source
    refusal    text,                         -- why it is not copied; empty: it is; null: the controller has not judged it
    asked      bigint       NOT NULL DEFAULT 0,  -- how often its coordinator asked for the last offsets
    answered   bigint       NOT NULL DEFAULT 0,  -- up to which question they were copied
    copied_at  timestamptz,                  -- when its offsets were last read at the source and written here
    came_at    timestamptz,                  -- when it was seen to have members here: from then on it is not copied
    offsets    int          NOT NULL DEFAULT 0,  -- partitions of copies in which the source has an offset of it
    behind     bigint       NOT NULL DEFAULT 0,  -- the sum of what its offsets here are behind those
    PRIMARY KEY (link, group_id)
) WITH (fillfactor = 50);
CREATE INDEX linked_groups_group ON linked_groups (group_id);
ALTER TABLE link_sources
    ADD COLUMN groups_at       timestamptz,            -- when all groups of the source were last reported
    ADD COLUMN groups_problem  text NOT NULL DEFAULT '';  -- why offsets of groups are not copied; empty: they are
-- Where copies ended when they were promoted: an offset of the source above that is of another record than here.
CREATE TABLE promoted_partitions (
    partition_key  bigint  PRIMARY KEY,
    topic_id       uuid    NOT NULL,
    link           text    NOT NULL,
    source_id      uuid    NOT NULL,
    end_offset     bigint  NOT NULL
);
CREATE INDEX promoted_partitions_link ON promoted_partitions (link);
ALTER TABLE linked_topics ADD COLUMN configs jsonb;  -- the source's that were set here last; null: not known
