-- Store the secret between agents, and the one of a rotation, in another form. False if one of them is not the expected
-- one any more.
-- Locks: the cluster's row. Idempotent: no; a repeated call finds other values. Cost: one row.
CREATE OR REPLACE FUNCTION seal_zone_secret(p_own_before bytea, p_own bytea, p_other_before bytea, p_other bytea)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE cluster SET zone_secret = p_own, zone_secret_other = p_other
     WHERE zone_secret = p_own_before AND zone_secret_other IS NOT DISTINCT FROM p_other_before;
    RETURN FOUND;
END $$;
