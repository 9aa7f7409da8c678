-- Extents that the bucket does not serve as they were stored (decisions/0091). Merges and passes of cleaning by key leave
-- them where they are; the file's other extents and other partitions go on. A row is about the extent that has this
-- place in this file: once it is gone, the row says nothing, and goes.
CREATE TABLE damaged_extents (
    file_id        uuid        NOT NULL,
    position       bigint      NOT NULL,
    length         bigint      NOT NULL,
    partition_key  bigint      NOT NULL,
    base_offset    bigint      NOT NULL,
    last_offset    bigint      NOT NULL,
    kind           smallint    NOT NULL,   -- metastore.api.damage.DamageKind
    found_at       timestamptz NOT NULL,
    checked_at     timestamptz NOT NULL,   -- when it was last read with the same result
    why            text        NOT NULL,
    PRIMARY KEY (file_id, position)
);
CREATE INDEX damaged_extents_partition ON damaged_extents (partition_key, last_offset);
