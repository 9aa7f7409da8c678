-- Configs are appended by append_records, too: what it was before goes.
DROP FUNCTION IF EXISTS append_records(bigint, bigint, bytea[], int, uuid[], int[], text[], smallint[], smallint[]);
