-- Register an agent, fenced, under a broker epoch that is the log offset of its RegisterBrokerRecord.
-- p_node_id NULL leases the lowest id without a holder, or with one that has no lease any more.
-- Answers why it was refused, if it was: 'cluster', 'feature' (detail: its name) or 'node id': its holder
-- may still be running.
-- Locks: lease_watch, metadata_head, then all leases (registering is rare, and while it looks
-- no lease may be renewed). Idempotent: the same incarnation gets the same answer.
-- Cost: one pass over agent_leases, four rows.
CREATE OR REPLACE FUNCTION register_agent(
    p_node_id          int,
    p_incarnation_id   uuid,
    p_host             text,
    p_port             int,
    p_rack             text,
    p_record           bytea,     -- its RegisterBrokerRecord, with broker id and epoch still to be put in
    p_session_timeout  interval,
    p_cluster_id       text,      -- NULL: not said
    p_feature_names    text[],    -- one element per feature that it supports in each of these three
    p_feature_mins     smallint[],
    p_feature_maxs     smallint[],
    OUT refusal        text,
    OUT detail         text,
    OUT node_id        int,
    OUT broker_epoch   bigint
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_granted              interval := greatest(granted_session(p_session_timeout), p_session_timeout);
    v_silence_counts_from  timestamptz := silence_counts_from(p_session_timeout);
    v_head                 bigint;
    v_now                  timestamptz;
    v_taken                int[];
BEGIN
    IF p_cluster_id <> (SELECT c.cluster_id FROM cluster c) THEN
        refusal := 'cluster';
        RETURN;
    END IF;
    UPDATE lease_watch SET last_contact_at = wall_time();
    v_head := lock_metadata_head();
    PERFORM FROM agent_leases l ORDER BY l.node_id FOR UPDATE;
    v_now := wall_time();

    SELECT a.node_id, a.broker_epoch INTO node_id, broker_epoch
      FROM agents a WHERE a.incarnation_id = p_incarnation_id;
    IF FOUND THEN
        UPDATE agent_leases l
           SET last_contact_at = v_now, held_until = greatest(l.held_until, v_now + v_granted)
         WHERE l.node_id = register_agent.node_id;
        RETURN;
    END IF;

    SELECT f.name INTO detail
      FROM features f
      LEFT JOIN unnest(p_feature_names, p_feature_mins, p_feature_maxs) AS s (name, min_level, max_level) USING (name)
     WHERE coalesce(f.max_level NOT BETWEEN s.min_level AND s.max_level, true)
     ORDER BY f.name LIMIT 1;
    IF detail IS NOT NULL THEN
        refusal := 'feature';
        RETURN;
    END IF;

    SELECT coalesce(array_agg(l.node_id), '{}') INTO v_taken
      FROM agent_leases l
     WHERE v_now < v_silence_counts_from OR l.held_until >= v_now;
    node_id := coalesce(p_node_id, (
        SELECT min(n) FROM generate_series(1, (SELECT count(*)::int FROM agents) + 1) AS n WHERE n <> ALL (v_taken)));
    IF node_id = ANY (v_taken) THEN
        refusal := 'node id';
        RETURN;
    END IF;

    broker_epoch := v_head;
    PERFORM append_metadata(v_head, ARRAY[
        overlay(overlay(p_record PLACING int4send(node_id) FROM 4) PLACING int8send(v_head) FROM 24)]);
    DELETE FROM agents a WHERE a.node_id = register_agent.node_id;
    INSERT INTO agents (node_id, incarnation_id, broker_epoch, fenced, host, port, rack)
    VALUES (register_agent.node_id, p_incarnation_id, v_head, true, p_host, p_port, p_rack);
    INSERT INTO agent_leases AS l (node_id, last_contact_at, held_until)
    VALUES (register_agent.node_id, v_now, v_now + v_granted)
    ON CONFLICT ON CONSTRAINT agent_leases_pkey
    DO UPDATE SET last_contact_at = excluded.last_contact_at, held_until = excluded.held_until, metadata_offset = 0;
END $$;
