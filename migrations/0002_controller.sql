-- The active controller, snapshots of the metadata log, feature levels, controlled shutdown.

-- Who acts for the cluster. The row's lock comes before every other (functions/controller_lease.sql).
CREATE TABLE controller (
    singleton         boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    controller_id     int         NOT NULL,                  -- node id; -1 while there was none yet
    incarnation_id    uuid        NOT NULL,
    controller_epoch  bigint      NOT NULL,
    deadline          timestamptz NOT NULL                   -- from then on anybody may take over
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
INSERT INTO controller (controller_id, incarnation_id, controller_epoch, deadline)
VALUES (-1, '00000000-0000-0000-0000-000000000000', 0, '-infinity');

-- Whole snapshot files (metastore/log/snapshot.py): each replaces the log below its end offset. The
-- log keeps the record just below the oldest kept snapshot, by which readers know that it is the same log.
CREATE TABLE metadata_snapshots (
    end_offset  bigint      PRIMARY KEY,
    data        bytea       NOT NULL,
    created_at  timestamptz NOT NULL
);
ALTER TABLE metadata_snapshots ALTER COLUMN data SET STORAGE EXTERNAL;  -- it is compressed already

-- Projection of the log: the levels that the cluster uses; a registration is judged by them.
CREATE TABLE features (
    name       text     PRIMARY KEY,
    min_level  smallint NOT NULL,
    max_level  smallint NOT NULL                             -- the active one
);

ALTER TABLE agents ADD COLUMN leaving_offset bigint;         -- the log offset of its ControlledShutdownRecord
ALTER TABLE agent_leases ADD COLUMN metadata_offset bigint NOT NULL DEFAULT 0;  -- of its image, at its last heartbeat

DROP FUNCTION IF EXISTS heartbeat(int, bigint, boolean, interval);
DROP FUNCTION IF EXISTS set_fenced(bigint, int, bigint, boolean);
DROP FUNCTION IF EXISTS register_agent(int, uuid, text, int, text, bytea, interval);
