-- Take the next step of replacing the secret between agents: another one, p_new, is accepted too (added); agents sign with the
-- other one (switched); the old one goes (done). Agents read it when they start, so nothing is done while an unfenced
-- agent registered before the last step: the result names them.
-- Locks: the cluster's row. Idempotent: no; a repeated call waits for the restart of the agents. Cost: one row per agent.
CREATE OR REPLACE FUNCTION rotate_zone_secret(p_new bytea) RETURNS TABLE (step text, waits_for int[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_cluster cluster;
    v_late    int[];
BEGIN
    SELECT * INTO v_cluster FROM cluster FOR UPDATE;
    SELECT array_agg(a.node_id ORDER BY a.node_id) INTO v_late
      FROM agents a WHERE NOT a.fenced AND a.broker_epoch < v_cluster.zone_secret_offset;
    IF v_late IS NOT NULL THEN
        RETURN QUERY SELECT v_cluster.zone_secret_step, v_late;
        RETURN;
    END IF;
    CASE v_cluster.zone_secret_step
        WHEN 'done' THEN
            v_cluster.zone_secret_step := 'added';
            v_cluster.zone_secret_other := p_new;
        WHEN 'added' THEN
            v_cluster.zone_secret_step := 'switched';
            SELECT c.zone_secret_other, c.zone_secret INTO v_cluster.zone_secret, v_cluster.zone_secret_other
              FROM cluster c;
        ELSE
            v_cluster.zone_secret_step := 'done';
            v_cluster.zone_secret_other := NULL;
    END CASE;
    UPDATE cluster c SET zone_secret = v_cluster.zone_secret, zone_secret_other = v_cluster.zone_secret_other,
           zone_secret_step = v_cluster.zone_secret_step,
           zone_secret_offset = (SELECT h.next_offset FROM metadata_head h);
    RETURN QUERY SELECT v_cluster.zone_secret_step, '{}'::int[];
END $$;
