-- The metastore grants each agent's lease and stores its end. Fencing uses the stored end: an agent that was granted
-- a long lease keeps it, also if the cluster's broker.session.timeout.ms becomes shorter meanwhile.
-- Agents that run now have leases of a length that only they know: one heartbeat replaces the guess.
ALTER TABLE agent_leases ADD COLUMN held_until timestamptz;
UPDATE agent_leases SET held_until = last_contact_at + interval '5 minutes';
ALTER TABLE agent_leases ALTER COLUMN held_until SET NOT NULL;
-- their answers now contain the granted length
DROP FUNCTION IF EXISTS heartbeat(int, bigint, bigint, boolean, boolean, interval, bigint);
DROP FUNCTION IF EXISTS hold_controller_lease(int, uuid, interval);
