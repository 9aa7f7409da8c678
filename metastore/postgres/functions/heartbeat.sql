-- Renew an agent's lease, fence or unfence it as it wants, and fence everybody whose lease ran out.
-- Answers whether the agent is unfenced; NULL when (node id, broker epoch) is not registered.
-- Locks: usually its own lease's row alone. Where something has to be logged: lease_watch (after an
-- outage), metadata_head, the own lease, the leases of the silent by node id.
-- Idempotent: yes. Cost: reads agents and agent_leases, one row per agent; one HOT update.
CREATE OR REPLACE FUNCTION heartbeat(
    p_node_id          int,
    p_broker_epoch     bigint,
    p_want_fence       boolean,
    p_session_timeout  interval
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_silence_counts_from  timestamptz := silence_counts_from(p_session_timeout);
    v_head                 bigint;
    v_now                  timestamptz;
    v_fenced               boolean;
    v_silent               record;
BEGIN
    -- plain reads say whether the log's head is needed, as its lock comes before a lease's; what
    -- they say is judged again under the locks
    IF EXISTS (SELECT FROM agents a WHERE a.node_id = p_node_id AND a.fenced <> p_want_fence)
       OR EXISTS (SELECT FROM agent_leases l JOIN agents a USING (node_id)
                   WHERE NOT a.fenced AND l.last_contact_at < wall_time() - p_session_timeout) THEN
        v_head := lock_metadata_head();
    END IF;
    PERFORM FROM agent_leases l WHERE l.node_id = p_node_id FOR UPDATE;
    v_now := wall_time();

    SELECT a.fenced INTO v_fenced FROM agents a WHERE a.node_id = p_node_id AND a.broker_epoch = p_broker_epoch;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE agent_leases SET last_contact_at = v_now WHERE node_id = p_node_id;
    IF v_head IS NULL THEN
        RETURN NOT v_fenced;
    END IF;

    IF v_fenced <> p_want_fence THEN
        PERFORM set_fenced(v_head, p_node_id, p_broker_epoch, p_want_fence);
        v_head := v_head + 1;
    END IF;
    IF v_now >= v_silence_counts_from THEN
        FOR v_silent IN
            SELECT a.node_id, a.broker_epoch
              FROM agent_leases l JOIN agents a USING (node_id)
             WHERE NOT a.fenced AND l.last_contact_at < v_now - p_session_timeout
             ORDER BY l.node_id FOR UPDATE OF l
        LOOP
            PERFORM set_fenced(v_head, v_silent.node_id, v_silent.broker_epoch, true);
            v_head := v_head + 1;
        END LOOP;
    END IF;
    RETURN NOT p_want_fence;
END $$;

-- Log and project one agent's being fenced or unfenced; the caller holds the head at p_head.
CREATE OR REPLACE FUNCTION set_fenced(p_head bigint, p_node_id int, p_broker_epoch bigint, p_fenced boolean) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT append_metadata(p_head, ARRAY[
        broker_record(CASE WHEN p_fenced THEN 7 ELSE 8 END, p_node_id, p_broker_epoch)]);
    UPDATE agents SET fenced = p_fenced WHERE node_id = p_node_id;
$$;
