-- Deletion of objects: dead files, and objects that no row names.
-- segment_files.state knows a third value from here on: 0 live, 1 condemned (an object that no commit may
-- name any more), 2 deleting (a dead file whose object goes; it never comes back).

-- How often this metastore let objects be deleted, and in which of its lives. The bucket keeps the same two
-- (compactor/permit.py): they disagree after a restore, and then nothing is deleted until an audit.
CREATE TABLE janitor (
    singleton   boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    generation  bigint  NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
INSERT INTO janitor (generation) VALUES (0);

-- Condemned and deleting rows, apart from dead files that only wait.
CREATE INDEX segment_files_doomed ON segment_files (dead_at) WHERE state IN (1, 2);
