-- The answer of each swap call of a lease, as long as the lease holds: a repeated call gets it (swap_answers.sql).
CREATE TABLE swap_answers (
    job_id    bigint      NOT NULL,
    epoch     bigint      NOT NULL,
    file_id   uuid        NOT NULL,                         -- the new file
    call      uuid        NOT NULL,                         -- digest of its swaps and their inputs
    outcomes  smallint[]  NOT NULL,                         -- SwapOutcome per swap
    PRIMARY KEY (job_id, epoch, file_id, call)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
