-- An index probe finds the newest version of a hot row first, also while an old snapshot (a dump, a forgotten BEGIN)
-- keeps all earlier versions: the primary keys now end with a column that rises with every 32nd update of a row.
-- The other 31 are HOT updates, as before. Without it a probe walks through every version since that snapshot.
-- Commits wait while the new keys are built.
ALTER TABLE commit_shards ADD COLUMN seq_block bigint NOT NULL DEFAULT 0;       -- seq / 32
ALTER TABLE commit_shards DROP CONSTRAINT commit_shards_pkey, ADD PRIMARY KEY (shard, seq_block);
ALTER TABLE partition_heads
    ADD COLUMN updates      bigint NOT NULL DEFAULT 0,
    ADD COLUMN update_block bigint NOT NULL DEFAULT 0,                          -- updates / 32
    DROP CONSTRAINT partition_heads_pkey,
    ADD PRIMARY KEY (partition_key, update_block);
ALTER TABLE producer_state
    ADD COLUMN updates      bigint NOT NULL DEFAULT 0,
    ADD COLUMN update_block bigint NOT NULL DEFAULT 0,                          -- updates / 32
    DROP CONSTRAINT producer_state_pkey,
    ADD PRIMARY KEY (partition_key, producer_id, update_block);
