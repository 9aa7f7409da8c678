-- The metadata log's two primitives; every change of the cluster goes through them.
-- Locks: metadata_head's only row, until the statement that calls ends. It comes after controller and
-- lease_watch and before agent_leases, commit shards and everything else.
-- Idempotent: no; the callers are. Cost: one row per record.

-- The next offset, which is the caller's alone from now on.
CREATE OR REPLACE FUNCTION lock_metadata_head() RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT next_offset FROM metadata_head FOR UPDATE
$$;

-- Append framed records at p_head, which lock_metadata_head has just returned.
CREATE OR REPLACE FUNCTION append_metadata(p_head bigint, p_records bytea[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO metadata_log (record_offset, record, appended_at)
    SELECT p_head + position - 1, record, clock_timestamp()
      FROM unnest(p_records) WITH ORDINALITY AS appended (record, position);
    UPDATE metadata_head
       SET next_offset = within_life('offsets of the metadata log', p_head + cardinality(p_records),
                                     life_floor_log(cluster_life() + 1));
$$;

-- UnregisterBrokerRecord, FenceBrokerRecord, UnfenceBrokerRecord and ControlledShutdownRecord have one layout:
-- frame type, record type, version, broker id, broker epoch, no tagged fields.
CREATE OR REPLACE FUNCTION broker_record(p_record_type int, p_node_id int, p_broker_epoch bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT set_byte('\x000000', 1, p_record_type) || int4send(p_node_id) || int8send(p_broker_epoch) || '\x00'::bytea
$$;
