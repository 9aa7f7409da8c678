-- Take an agent out of the cluster at once; its node id is free from now on.
-- Locks: metadata_head, then its lease. Idempotent: a stale or unknown (node id, broker epoch)
-- changes nothing. Cost: four rows.
CREATE OR REPLACE FUNCTION unregister_agent(p_node_id int, p_broker_epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_head bigint := lock_metadata_head();
BEGIN
    DELETE FROM agents WHERE node_id = p_node_id AND broker_epoch = p_broker_epoch;
    IF FOUND THEN
        DELETE FROM agent_leases WHERE node_id = p_node_id;
        PERFORM append_metadata(v_head, ARRAY[broker_record(record_unregister_broker(), p_node_id, p_broker_epoch)]);
    END IF;
END $$;
