-- Draw the incarnation id of the life that is to begin on this server, before the bucket names it: of two servers
-- that reach one timeline, only one finds its own id there. The id that this server prepared first stays.
-- Locks: the cluster's row. Idempotent: yes. Cost: one update.
CREATE OR REPLACE FUNCTION prepare_life(p_incarnation_id uuid) RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_prepared uuid;
BEGIN
    UPDATE cluster
       SET next_incarnation_id = CASE WHEN next_timeline = server_timeline()
                                      THEN coalesce(next_incarnation_id, p_incarnation_id)
                                      ELSE p_incarnation_id END,
           next_timeline = server_timeline()
    RETURNING next_incarnation_id INTO v_prepared;
    RETURN v_prepared;
END $$;
