-- What a promotion or restore of Postgres found of share groups, so that `headrace audit --lost` lists the
-- acknowledgements that it lost (decisions/0090).
ALTER TABLE share_partitions
    ADD COLUMN begun_offset bigint NOT NULL DEFAULT 0,   -- the lowest offset at which the group began; 0 if not known
    ADD COLUMN found_life   int,                         -- the last life of the metastore that found this row of an
    ADD COLUMN found_start  bigint,                      -- earlier one, and start_offset and kept as it found them;
    ADD COLUMN found_kept   bytea;                       -- NULL: the row's own are what its life found or wrote first
