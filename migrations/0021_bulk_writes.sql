-- Bulk writes (decisions/0043): records that Spark's tasks stored as segment files, committed by its driver in chunks.

-- The newest decided batch of each writer: of a streaming query, or of one batch job.
CREATE TABLE bulk_writes (
    writer      text         PRIMARY KEY,
    batch_id    bigint       NOT NULL,
    attempt     uuid         NOT NULL,        -- the only attempt at this batch whose chunks are committed
    chunks      int          NOT NULL,
    next_chunk  int          NOT NULL,        -- the chunks before it are committed; = chunks: the write is complete
    changed_at  timestamptz  NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX bulk_writes_unfinished ON bulk_writes (changed_at) WHERE next_chunk < chunks;

-- What attempts want to commit. A chunk is removed when it is committed. Files and runs are arrays of one length each;
-- run_file is a number from 1 among the chunk's files.
CREATE TABLE bulk_write_chunks (
    attempt       uuid         NOT NULL,
    chunk         int          NOT NULL,
    staged_at     timestamptz  NOT NULL,
    file_ids      uuid[]       NOT NULL,
    born_ms       bigint[]     NOT NULL,      -- as the ids carry them
    until_ms      bigint[]     NOT NULL,      -- the ends of their terms
    sizes         bigint[]     NOT NULL,
    body_bytes    bigint[]     NOT NULL,
    run_file      int[]        NOT NULL,      -- a run becomes an extent
    run_key       bigint[]     NOT NULL,
    run_position  bigint[]     NOT NULL,
    run_length    bigint[]     NOT NULL,
    run_records   bigint[]     NOT NULL,
    run_time      bigint[]     NOT NULL,
    PRIMARY KEY (attempt, chunk)
);
CREATE INDEX bulk_write_chunks_staged ON bulk_write_chunks (staged_at);
