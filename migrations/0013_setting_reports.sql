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
