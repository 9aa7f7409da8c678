-- Which life of the metastore this is. Every writing call names the life that its process knows and is refused
-- under another one; and on another server, or in another database of it, than the life was begun on, until a new
-- life begins there. docs/decisions/0035 and 0094 say what this detects.

-- True, or error HR002: nothing of the calling statement happens.
-- Locks: advisory (life_lock(), 0), shared, before all others; a new life begins under the exclusive one.
-- Idempotent: reads only. Cost: one row, no I/O.
CREATE OR REPLACE FUNCTION assert_life(p_life int) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(life_lock(), 0);
    PERFORM FROM cluster WHERE life = p_life AND timeline = server_timeline()
                           AND (database_oid = own_database() OR database_oid IS NULL);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another life of the metastore: named=% stored=% begun_on_timeline=% timeline=% begun_in_database=% database=%',
                        p_life, (SELECT life FROM cluster), (SELECT timeline FROM cluster), server_timeline(),
                        (SELECT database_oid FROM cluster), own_database()
              USING ERRCODE = 'HR002';
    END IF;
    RETURN true;
END $$;

-- The server's WAL timeline. pg_control_checkpoint() has the old one until the first checkpoint after a promotion.
-- Locks: none. Idempotent: reads only. Cost: none worth naming.
CREATE OR REPLACE FUNCTION server_timeline() RETURNS int
LANGUAGE sql VOLATILE
RETURN ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int;

-- The oid of the current database: a rename keeps it; a restored dump and a template copy have another one.
-- It is the last but one part of the path of each of its tables, which costs 0.3 microseconds; a look into pg_database
-- costs 7, as much as all else that assert_life does.
-- Locks: none. Idempotent: reads only. Cost: none worth naming.
CREATE OR REPLACE FUNCTION own_database() RETURNS oid
LANGUAGE sql STABLE
RETURN split_part(pg_relation_filepath('cluster'), '/', -2)::oid;

-- Its life. Locks: none. Idempotent: reads only. Cost: one row.
CREATE OR REPLACE FUNCTION cluster_life() RETURNS int
LANGUAGE sql STABLE AS $$
    SELECT life FROM cluster
$$;
