-- What the file of each running process says about the settings that have one value in the cluster. The active
-- controller records values on which all reports agree; while they disagree, nothing that needs the value is deleted.
CREATE TABLE setting_reports (
    incarnation_id     uuid PRIMARY KEY,       -- of the process
    process            text NOT NULL,          -- host and process id, for people
    roles              text[] NOT NULL,
    node_id            int,                    -- of an agent, once it has registered
    names              text[] NOT NULL,        -- one element per setting in each of these two
    proposals          text[] NOT NULL,
    reported_at        timestamptz NOT NULL    -- renewed every few seconds; a report that is not renewed stops counting
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- The end of the last change of configs in the metadata log: retention that was decided before it is refused.
ALTER TABLE metadata_head ADD COLUMN configs_offset bigint NOT NULL DEFAULT 0;

-- These took the values of the caller's file. A process of an older version that calls them deletes nothing: its call
-- fails until the process is replaced.
DROP FUNCTION IF EXISTS take_dead_files(bigint, bigint, uuid, interval, int);
DROP FUNCTION IF EXISTS expire_producer_state(bigint, int);
DROP FUNCTION IF EXISTS expire_group_offsets(interval, int);
