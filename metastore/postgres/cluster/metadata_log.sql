-- The metadata log's two primitives; every change of the cluster goes through them.
-- Locks: metadata_head's only row, until the statement that calls ends. It comes after controller and
-- lease_watch and before agent_leases, commit shards and everything else.
-- Idempotent: no; the callers are. Cost: one row per record.

-- The next offset, which is the caller's alone from now on.
CREATE OR REPLACE FUNCTION lock_metadata_head() RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT next_offset FROM metadata_head FOR UPDATE
$$;

-- Append framed records at p_head, which lock_metadata_head has just returned. Error if one is larger than a record may
-- be (metastore/log/records.py): every agent and every snapshot would hold it.
CREATE OR REPLACE FUNCTION append_metadata(p_head bigint, p_records bytea[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_bytes int := (SELECT max(octet_length(record)) FROM unnest(p_records) AS record
                     WHERE octet_length(record) > record_bytes_max() AND NOT is_removal_record(record));
BEGIN
    IF v_bytes IS NOT NULL THEN
        RAISE EXCEPTION 'metadata record is too large: bytes=% max=%', v_bytes, record_bytes_max();
    END IF;
    INSERT INTO metadata_log (record_offset, record, appended_at)
    SELECT p_head + position - 1, record, clock_timestamp()
      FROM unnest(p_records) WITH ORDINALITY AS appended (record, position);
    UPDATE metadata_head
       SET next_offset = within_life('offsets of the metadata log', p_head + cardinality(p_records),
                                     life_floor_log(cluster_life() + 1));
END $$;

CREATE OR REPLACE FUNCTION record_bytes_max() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 131072;

-- Whether a framed record only says that something is gone: one of the Remove...Records (types 100 to 103), a
-- ConfigRecord (4) without a value, or a QuotaRecord (14) that removes. Those end with the null value or the flag, and
-- no tagged fields. No value of a config ends with NUL: Postgres does not store it.
CREATE OR REPLACE FUNCTION is_removal_record(p_record bytea) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN octet_length(p_record) < 4 THEN false
    WHEN get_byte(p_record, 1) BETWEEN 100 AND 103 THEN true
    WHEN get_byte(p_record, 1) = 4 THEN substring(p_record FROM octet_length(p_record) - 1) = '\x0000'::bytea
    WHEN get_byte(p_record, 1) = 14 THEN substring(p_record FROM octet_length(p_record) - 1) = '\x0100'::bytea
    ELSE false END;

-- UnregisterBrokerRecord, FenceBrokerRecord, UnfenceBrokerRecord and ControlledShutdownRecord have one layout:
-- frame type, record type, version, broker id, broker epoch, no tagged fields.
CREATE OR REPLACE FUNCTION broker_record(p_record_type int, p_node_id int, p_broker_epoch bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT set_byte('\x000000', 1, p_record_type) || int4send(p_node_id) || int8send(p_broker_epoch) || '\x00'::bytea
$$;
