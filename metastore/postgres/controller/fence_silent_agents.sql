-- Fence every agent with an ended lease, by the end that was stored when it was granted; answers their node ids, NULL
-- for a stale controller epoch. p_session_timeout: as granted_session.
-- That the controller is heard shows that the metastore was there, so its own call is a contact.
-- Locks: controller (shared), lease_watch; where an agent is silent, metadata_head and the leases of
-- the silent by node id. Idempotent: yes. Cost: reads agents and agent_leases, one row per agent.
CREATE OR REPLACE FUNCTION fence_silent_agents(p_controller_epoch bigint, p_session_timeout interval) RETURNS int[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_silence_counts_from  timestamptz;
    v_head                 bigint;
    v_now                  timestamptz;
    v_silent               record;
    v_fenced               int[] := '{}';
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    v_silence_counts_from := silence_counts_from(p_session_timeout);
    UPDATE lease_watch SET last_contact_at = wall_time();
    -- a plain read says whether the log's head is needed; it is judged again under the locks
    IF wall_time() < v_silence_counts_from OR NOT EXISTS (
        SELECT FROM agent_leases l JOIN agents a USING (node_id)
         WHERE NOT a.fenced AND l.held_until < wall_time()) THEN
        RETURN v_fenced;
    END IF;

    v_head := lock_metadata_head();
    v_now := wall_time();
    FOR v_silent IN
        SELECT a.node_id, a.broker_epoch
          FROM agent_leases l JOIN agents a USING (node_id)
         WHERE NOT a.fenced AND l.held_until < v_now
         ORDER BY l.node_id FOR UPDATE OF l
    LOOP
        PERFORM change_agent(v_head, v_silent.node_id, v_silent.broker_epoch, record_fence_broker());
        v_head := v_head + 1;
        v_fenced := v_fenced || v_silent.node_id;
    END LOOP;
    RETURN v_fenced;
END $$;
