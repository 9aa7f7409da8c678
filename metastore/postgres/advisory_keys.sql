-- The first keys of all advisory locks, each with one meaning. A database has one space of keys: a function
-- that takes a key for a second purpose waits for the holders of the first. tests/metastore/test_advisory_keys.py lists which
-- functions take which key. The process that migrates holds (7200, 1): metastore/postgres/migrate.py.
-- Locks: none. Idempotent: constants. Cost: none, they are folded into the plan.

-- With the number of a commit shard: its head, feed and producers (lock_shards.sql).
CREATE OR REPLACE FUNCTION shard_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 7201;

-- With 0: blocks of producer ids.
CREATE OR REPLACE FUNCTION producer_id_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 7202;

-- With 0: the life of the metastore; every writing call shares it, a new life begins under the exclusive lock, and commit
-- shards grow under it.
CREATE OR REPLACE FUNCTION life_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 7203;

-- With the hash of a writer: its bulk writes.
CREATE OR REPLACE FUNCTION bulk_writer_lock() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 7204;
