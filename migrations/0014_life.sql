-- The life of a metastore (docs/decisions/0035): its number, and the server that it was begun on.
-- A writing call names the number, and is refused on a server that is not the row's: a promoted standby or a
-- restored backup writes nothing before a new life has begun there.
ALTER TABLE cluster
    ADD COLUMN life                int      NOT NULL DEFAULT 0 CHECK (life >= 0),
    ADD COLUMN system_identifier   bigint   NOT NULL DEFAULT (pg_control_system()).system_identifier,
    ADD COLUMN timeline            int      NOT NULL  -- of the WAL: each promotion raises it
        DEFAULT ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int,
    ADD COLUMN next_incarnation_id uuid,              -- prepared for the next life (life/prepare_life.sql)
    ADD COLUMN next_timeline       int;               -- where: a copy of this row on another timeline prepares again

DROP FUNCTION IF EXISTS begin_incarnation();  -- life/begin_life.sql
