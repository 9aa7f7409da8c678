-- How rows are packed into bytea: fixed width, big endian, without a header. Python's side is
-- metastore/postgres/packing.py. Stored for minutes (feed), an hour (answers) or days (rings): a
-- change of layout needs a new name.
-- Locks: none. Idempotent: pure. Cost: about a microsecond each.

-- Sequences of idempotent producers wrap to 0 after 2^31 - 1 (KIP-98).
CREATE OR REPLACE FUNCTION next_sequence(p_sequence int, p_records int) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ((p_sequence::bigint + p_records) & 2147483647)::int;

-- 68 bytes: metastore.api.read.Extent in the order of its fields.
CREATE OR REPLACE FUNCTION pack_extent(
    p_key bigint, p_base bigint, p_last bigint, p_file_id uuid, p_position bigint, p_length bigint,
    p_leader_epoch int, p_max_timestamp bigint
) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN int8send(p_key) || int8send(p_base) || int8send(p_last) || uuid_send(p_file_id) || int8send(p_position)
       || int8send(p_length) || int4send(p_leader_epoch) || int8send(p_max_timestamp);

-- A feed row of kind feed_transaction(): the number of extents, and these; the number of partitions, and of each its
-- first open offset, -1 if none is open; then the transactions that were aborted.
CREATE OR REPLACE FUNCTION pack_transaction_row(p_extents bytea, p_opens bytea, p_aborted bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN int4send(length(p_extents) / 68) || p_extents || int4send(length(p_opens) / 16) || p_opens || p_aborted;

-- 32 bytes: metastore.api.read.AbortedRange in the order of its fields.
CREATE OR REPLACE FUNCTION pack_aborted(p_key bigint, p_producer_id bigint, p_first bigint, p_last bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN int8send(p_key) || int8send(p_producer_id) || int8send(p_first) || int8send(p_last);

-- A file's answer opens with a byte that says which of two it is. 0: every batch was appended; then one
-- int8 per run of neighbours, the base offset of its first batch. 1: this for each batch, 18 bytes:
-- metastore.api.commit.BatchAnswer; of a batch that is out of order, its two other numbers are in the places of offset
-- and time, which agents of the release before do not read. Both go by partition key, then by place in the file.
CREATE OR REPLACE FUNCTION pack_answer(p_outcome smallint, p_base bigint, p_time bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN int2send(p_outcome)
       || CASE WHEN p_outcome IN (batch_appended(), batch_duplicate(), batch_out_of_order())
               THEN int8send(p_base) || int8send(p_time)
               ELSE int8send(-1) || int8send(-1) END;
