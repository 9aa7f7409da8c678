-- Note the metastore's bucket, if none is noted. True if the row names this one.
--
-- Locks: the cluster's row. Idempotent: yes, a bucket that is noted stays. Cost: one update, once for a cluster.
CREATE OR REPLACE FUNCTION record_bucket(p_bucket_id uuid, p_address text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE cluster SET bucket_id = p_bucket_id, bucket_address = p_address WHERE bucket_id IS NULL;
    RETURN EXISTS (SELECT FROM cluster WHERE bucket_id = p_bucket_id AND bucket_address = p_address);
END $$;
