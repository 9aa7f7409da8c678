-- Which lease reserved a file id before it knew the file's segments: tasks of Spark store under such ids. The id is valid
-- as long as that lease, however long its tasks take (decisions/0046). Few at any time.
CREATE TABLE file_reservations (
    file_id  uuid    PRIMARY KEY,
    job_id   bigint  NOT NULL,
    epoch    bigint  NOT NULL
);
