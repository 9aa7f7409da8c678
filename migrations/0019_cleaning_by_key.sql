-- Log compaction by key (decisions/0038): how far each partition of a compacted topic is rolled and cleaned. A partition
-- without a row was never looked at: nothing of it is below its roll offset, and nothing is cleaned.
CREATE TABLE cleaned_partitions (
    partition_key    bigint      PRIMARY KEY,
    roll_offset      bigint      NOT NULL DEFAULT 0,  -- the active part begins here: it is never cleaned
    rolled_bytes     bigint      NOT NULL DEFAULT 0,  -- partition_heads.appended_bytes when it was set
    active_since     timestamptz,                     -- when the first record of the active part was committed
    cleaned_offset   bigint      NOT NULL DEFAULT 0,  -- every extent below was cleaned against all keys below it
    dirty_since      timestamptz,                     -- when the first record between the two was committed
    horizon_ms       bigint,                          -- the first delete horizon below cleaned_offset
    uncleanable_at   timestamptz,
    uncleanable_why  text
) WITH (fillfactor = 70);
-- It returns one column more.
DROP FUNCTION IF EXISTS find_live_extents(uuid[]);
