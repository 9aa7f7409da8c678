-- Draw the incarnation id of the life that is to begin on this server, before the bucket names it: of two servers
-- that reach one timeline, only one finds its own id there. The id that this server prepared first stays, unless it is
-- p_spent: in a copy that was made before that life began, another server may have used it since.
-- Locks: the cluster's row. Idempotent: yes. Cost: one update.
CREATE OR REPLACE FUNCTION prepare_unspent_life(p_incarnation_id uuid, p_spent uuid) RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_prepared uuid;
BEGIN
    UPDATE cluster
       SET next_incarnation_id = CASE WHEN next_timeline = server_timeline()
                                      THEN coalesce(nullif(next_incarnation_id, p_spent), p_incarnation_id)
                                      ELSE p_incarnation_id END,
           next_timeline = server_timeline()
    RETURNING next_incarnation_id INTO v_prepared;
    RETURN v_prepared;
END $$;

-- The same for agents of the release before, which keep every id that is prepared.
CREATE OR REPLACE FUNCTION prepare_life(p_incarnation_id uuid) RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT prepare_unspent_life(p_incarnation_id, NULL)
$$;
