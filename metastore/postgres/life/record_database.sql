-- Note the database of a life that an agent of the release before 0066 began, or that no process has seen yet. False if
-- another life has begun, or the row names another database: the caller compares again.
-- The caller has made sure that the bucket names this database as the life's (metastore/life/bucket.py).
--
-- Locks: the cluster's row. Idempotent: yes, a database that is noted stays. Cost: one update, once in a life.
CREATE OR REPLACE FUNCTION record_database(p_life int, p_incarnation_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE cluster SET database_oid = own_database()
     WHERE life = p_life AND incarnation_id = p_incarnation_id AND timeline = server_timeline()
       AND database_oid IS NULL;
    RETURN EXISTS (SELECT FROM cluster
                    WHERE life = p_life AND incarnation_id = p_incarnation_id AND database_oid = own_database());
END $$;
