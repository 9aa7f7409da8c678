-- Renew an agent's lease and note its image's offset; fence or unfence it, or begin its controlled
-- shutdown, as it wants and may; show it again if it was hidden (hide_agent.sql). All answers are NULL when (node id, broker epoch) is not registered.
-- Fencing the silent is the controller's (fence_silent_agents.sql).
-- The lease that is granted has the cluster's broker.session.timeout.ms; p_session_timeout while the cluster has no
-- value. The stored end never moves back, and is at least p_session_timeout from now: an agent of a version that does
-- not read the answer's session_timeout_ms trusts what it asked for.
-- Locks: usually its own lease's row alone. Where something has to be logged: lease_watch (after an
-- outage), metadata_head, the own lease.
-- Idempotent: yes. Cost: reads agent_leases, one row per agent; one HOT update.
CREATE OR REPLACE FUNCTION heartbeat(
    p_node_id             int,
    p_broker_epoch        bigint,
    p_metadata_offset     bigint,
    p_want_fence          boolean,
    p_want_shut_down      boolean,
    p_session_timeout     interval,
    p_max_lag             bigint,
    OUT is_caught_up      boolean,
    OUT is_fenced         boolean,
    OUT should_shut_down  boolean,
    OUT metadata_head     bigint,
    OUT controller_id     int,
    OUT session_timeout_ms bigint
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_head    bigint;
    v_agent   agents;
    v_change  int;
    v_granted interval := granted_session(p_session_timeout);
    v_max_lag bigint   := coalesce(cluster_setting('metadata.max.lag.records')::bigint, p_max_lag);
BEGIN
    PERFORM silence_counts_from(p_session_timeout);  -- notices that all agents were silent
    SELECT h.next_offset INTO metadata_head FROM metadata_head h;
    SELECT * INTO v_agent FROM agents a WHERE a.node_id = p_node_id;
    is_caught_up := p_metadata_offset > p_broker_epoch
                AND p_metadata_offset BETWEEN metadata_head - v_max_lag AND metadata_head;
    -- a plain read says whether the log's head is needed, as its lock comes before a lease's; what it
    -- says is judged again under the locks
    IF wanted_change(v_agent, p_want_fence, p_want_shut_down, is_caught_up) IS NOT NULL THEN
        v_head := lock_metadata_head();
    END IF;
    PERFORM FROM agent_leases l WHERE l.node_id = p_node_id FOR UPDATE;
    SELECT * INTO v_agent FROM agents a WHERE a.node_id = p_node_id AND a.broker_epoch = p_broker_epoch;
    IF NOT FOUND THEN
        is_caught_up := NULL;
        metadata_head := NULL;
        RETURN;
    END IF;
    UPDATE agent_leases
       SET last_contact_at = wall_time(), metadata_offset = p_metadata_offset,
           held_until = greatest(held_until, wall_time() + greatest(v_granted, p_session_timeout))
     WHERE node_id = p_node_id;

    IF v_head IS NOT NULL THEN
        is_caught_up := p_metadata_offset > p_broker_epoch
                    AND p_metadata_offset BETWEEN v_head - v_max_lag AND v_head;
        v_change := wanted_change(v_agent, p_want_fence, p_want_shut_down, is_caught_up);
        metadata_head := v_head;
        IF v_change IS NOT NULL THEN
            PERFORM change_agent(v_head, p_node_id, p_broker_epoch, v_change);
            SELECT * INTO v_agent FROM agents a WHERE a.node_id = p_node_id;
            metadata_head := v_head + 1;
        END IF;
    END IF;
    is_fenced := v_agent.fenced;
    should_shut_down := p_want_shut_down AND (v_agent.fenced OR NOT EXISTS (
        SELECT FROM agents a JOIN agent_leases l USING (node_id)
         WHERE NOT a.fenced AND NOT a.hidden AND a.leaving_offset IS NULL
           AND l.metadata_offset <= v_agent.leaving_offset));
    controller_id := active_controller_id();
    session_timeout_ms := interval_ms(v_granted);
END $$;

-- The length of an agent's lease: the cluster's value, else the one that the caller's settings have.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION granted_session(p_session_timeout interval) RETURNS interval
LANGUAGE sql STABLE AS $$
    SELECT coalesce(cluster_interval('broker.session.timeout.ms'), p_session_timeout)
$$;

-- Milliseconds of an interval. Locks: none. Idempotent: pure. Cost: none.
CREATE OR REPLACE FUNCTION interval_ms(p_interval interval) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN floor(extract(epoch FROM p_interval) * 1000)::bigint;

-- The type of the record that a heartbeat asks for; NULL for none. An agent that asks for a
-- controlled shutdown may stop at once if no other agent is live, so that clients do not see an empty cluster,
-- and before metadata.format 2, which has no record for it.
CREATE OR REPLACE FUNCTION wanted_change(
    p_agent agents, p_want_fence boolean, p_want_shut_down boolean, p_is_caught_up boolean
) RETURNS int
LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN p_want_shut_down AND NOT p_agent.fenced AND p_agent.leaving_offset IS NULL
             AND metadata_format() >= 2
             AND EXISTS (SELECT FROM agents a
                          WHERE a.node_id <> p_agent.node_id AND NOT a.fenced AND a.leaving_offset IS NULL)
             THEN record_controlled_shutdown()
        WHEN p_want_fence AND NOT p_agent.fenced THEN record_fence_broker()
        WHEN p_agent.fenced AND p_is_caught_up AND NOT p_want_fence AND NOT p_want_shut_down
             AND p_agent.leaving_offset IS NULL THEN record_unfence_broker()
        WHEN p_agent.hidden AND NOT p_agent.fenced AND p_agent.leaving_offset IS NULL THEN record_show_broker()
    END
$$;

-- Log and project one agent's being fenced, unfenced, hidden, shown or leaving; the caller holds the
-- head at p_head. A fenced agent is not hidden.
CREATE OR REPLACE FUNCTION change_agent(p_head bigint, p_node_id int, p_broker_epoch bigint, p_record_type int)
RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT append_metadata(p_head, ARRAY[broker_record(p_record_type, p_node_id, p_broker_epoch)]);
    UPDATE agents
       SET fenced = CASE p_record_type WHEN record_fence_broker() THEN true
                                       WHEN record_unfence_broker() THEN false
                                       ELSE fenced END,
           hidden = CASE p_record_type WHEN record_hide_broker() THEN true
                                       WHEN record_show_broker() THEN false
                                       WHEN record_fence_broker() THEN false
                                       ELSE hidden END,
           hidden_before = hidden_before OR p_record_type = record_hide_broker(),
           leaving_offset = CASE p_record_type WHEN record_controlled_shutdown() THEN p_head ELSE leaving_offset END
     WHERE node_id = p_node_id;
$$;
