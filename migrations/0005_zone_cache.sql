-- What the agents of the cluster prove to each other that they are agents of it (agent/fetch/zone_cache).
-- Drawn from Postgres' strong random source; nobody but the agents reads it, and nothing ever prints it.
ALTER TABLE cluster ADD COLUMN zone_secret bytea NOT NULL
    DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());
