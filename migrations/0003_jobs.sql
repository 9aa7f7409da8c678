-- Background work: leased jobs, files that die, partition sizes, read pins.

-- A unit of background work. It is leased to one worker at a time, under an epoch that rises with each
-- lease and that fences whatever the worker does (functions/assert_job.sql).
CREATE TABLE jobs (
    job_id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind          text        NOT NULL,
    key           text        NOT NULL,                      -- unique among the unfinished of a kind
    payload       bytea       NOT NULL,
    priority      smallint    NOT NULL,                      -- higher first
    period_ms     bigint,                                    -- once done it waits that long and begins anew; NULL: once
    max_attempts  int,                                       -- then it is given up; NULL: never
    state         smallint    NOT NULL,                      -- metastore.jobs.JobState
    due_at        timestamptz NOT NULL,                      -- waiting: not before; leased: the lease's deadline
    epoch         bigint      NOT NULL DEFAULT 0,
    worker        text,                                      -- the last holder
    attempts      int         NOT NULL DEFAULT 0,            -- leases since it was last done
    progress      text        NOT NULL DEFAULT '',           -- its holder's words, kept for the next one
    last_error    text,
    created_at    timestamptz NOT NULL,
    leased_at     timestamptz,
    ended_at      timestamptz                                -- when it was last done, or given up
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE UNIQUE INDEX jobs_unfinished ON jobs (kind, key) WHERE state IN (0, 1);
CREATE INDEX jobs_finished ON jobs (ended_at) WHERE state IN (2, 3);

-- A long reader's claim on all files that were live at pinned_at: the janitor leaves alone what died since.
CREATE TABLE read_pins (
    pin_id     uuid        PRIMARY KEY,
    holder     text        NOT NULL,
    pinned_at  timestamptz NOT NULL,
    deadline   timestamptz NOT NULL
);

-- How a file ends. Neither column is in an index with live_bytes, so that losing bytes stays a HOT update.
ALTER TABLE segment_files ADD COLUMN level smallint NOT NULL DEFAULT 0;  -- 0 as flushed, 1 merged, 2 rewritten
ALTER TABLE segment_files ADD COLUMN dead_at timestamptz;                -- since then no extent names it
UPDATE segment_files SET dead_at = clock_timestamp() WHERE state = 0 AND live_bytes = 0;
CREATE INDEX segment_files_dead ON segment_files (dead_at) WHERE dead_at IS NOT NULL;

-- What of a file is live (docs/decisions/0015): file ids are born in order, so inserts meet the last page.
CREATE INDEX extents_file ON extents (file_id);

-- A partition's size in O(1) is the difference of two sums, each written under a lock that its writer
-- holds anyway: commits add under their shard's lock, whoever removes extents under the partition's row.
ALTER TABLE partition_heads ADD COLUMN appended_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE partitions ADD COLUMN removed_bytes bigint NOT NULL DEFAULT 0;
-- No extent ends below it: what lies between it and the log start is still to be removed. Whoever removes
-- begins here, not among the dead index entries of what was removed before.
ALTER TABLE partitions ADD COLUMN extents_from bigint NOT NULL DEFAULT 0;
ALTER TABLE partitions SET (fillfactor = 70);                            -- log starts move: HOT updates
UPDATE partition_heads h SET appended_bytes = e.bytes
  FROM (SELECT partition_key, sum(length) AS bytes FROM extents GROUP BY partition_key) AS e
 WHERE h.partition_key = e.partition_key;
