-- A partition that is younger than producer.id.expiration.ms cannot have forgotten a producer (decisions/0012).
-- Partitions that are here now count as old: most are, and a producer that they forgot must be able to go on. One that
-- was created less than an expiration ago is so judged by the producer's age alone until it is as old.
ALTER TABLE partitions ADD COLUMN created_at timestamptz NOT NULL DEFAULT 'epoch';
ALTER TABLE partitions ALTER COLUMN created_at SET DEFAULT clock_timestamp();
-- state_may_have_expired takes its place.
DROP FUNCTION IF EXISTS producer_id_expired(bigint, bigint);
