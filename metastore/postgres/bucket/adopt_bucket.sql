-- Name another bucket as the metastore's: an operator has moved or restored the files. False if the row does not
-- name p_before any more (NULL: none).
--
-- Locks: the cluster's row. Idempotent: a repetition finds another p_before; the caller reads the row again.
-- Cost: one update.
CREATE OR REPLACE FUNCTION adopt_bucket(p_before uuid, p_bucket_id uuid, p_address text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE cluster SET bucket_id = p_bucket_id, bucket_address = p_address, bucket_adopted_at = wall_time()
     WHERE bucket_id IS NOT DISTINCT FROM p_before;
    RETURN FOUND;
END $$;
