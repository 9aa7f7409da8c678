-- Hide an agent from clients: the controller's link to it broke, and it refuses connections. Fencing keeps its own rule.
-- Answers whether it is hidden now by this call; NULL for a stale controller epoch. It stays visible if it is not a
-- member under p_broker_epoch, if it would be the last visible one or more than half of all members would be hidden,
-- and if it was hidden before and its last heartbeat is no older than a third of its lease: then it is not gone.
-- Its next heartbeat shows it again (heartbeat.sql). Nothing before metadata.format 3, which has the record for it.
-- p_session_timeout: as granted_session.
-- Locks: controller (shared), metadata_head, the agent's lease. Idempotent: yes.
-- Cost: reads agents, one row per agent; one record.
CREATE OR REPLACE FUNCTION hide_agent(
    p_controller_epoch bigint, p_node_id int, p_broker_epoch bigint, p_session_timeout interval
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_head     bigint;
    v_agent    agents;
    v_members  int;
    v_hidden   int;
    v_heard_at timestamptz;
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    IF metadata_format() < 3 THEN
        RETURN false;
    END IF;
    v_head := lock_metadata_head();
    SELECT l.last_contact_at INTO v_heard_at FROM agent_leases l WHERE l.node_id = p_node_id FOR UPDATE;
    SELECT * INTO v_agent FROM agents a WHERE a.node_id = p_node_id AND a.broker_epoch = p_broker_epoch;
    IF NOT FOUND OR v_agent.fenced OR v_agent.leaving_offset IS NOT NULL OR v_agent.hidden THEN
        RETURN false;
    END IF;
    IF v_agent.hidden_before AND v_heard_at > wall_time() - granted_session(p_session_timeout) / 3 THEN
        RETURN false;
    END IF;
    SELECT count(*), count(*) FILTER (WHERE a.hidden) INTO v_members, v_hidden
      FROM agents a WHERE NOT a.fenced AND a.leaving_offset IS NULL;
    IF 2 * (v_hidden + 1) > v_members THEN
        RETURN false;
    END IF;
    PERFORM change_agent(v_head, p_node_id, p_broker_epoch, record_hide_broker());
    RETURN true;
END $$;
