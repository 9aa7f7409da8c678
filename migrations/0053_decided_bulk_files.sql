-- Files of decided attempts at bulk writes, until the bucket has a record of them: a rebuild shows no others.
CREATE TABLE decided_bulk_files (
    file_id  uuid PRIMARY KEY
);
-- All that were decided until now: a UUIDv8 of level 0 is a file of a bulk write, state 1 is condemned.
INSERT INTO decided_bulk_files (file_id)
SELECT file_id FROM segment_files WHERE get_byte(uuid_send(file_id), 6) = 128 AND state <> 1;
