-- What each agent used of the quotas that all agents share (decisions/0057), in a form that only agents read.
CREATE TABLE quota_use (
    node_id      int         PRIMARY KEY,
    report       text        NOT NULL,
    reported_at  timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- The secret between agents is replaced in steps: another one is accepted too, then both change places, then it goes.
ALTER TABLE cluster
    ADD COLUMN zone_secret_other  bytea,                        -- also accepted; NULL: no rotation is under way
    ADD COLUMN zone_secret_step   text   NOT NULL DEFAULT 'done',  -- done, added or switched
    ADD COLUMN zone_secret_offset bigint NOT NULL DEFAULT 0;    -- agents that registered before it may not know the step
