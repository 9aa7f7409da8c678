-- The node id of the agent in whose process a lease is held: the records of remote segments name it. NULL: no agent.
ALTER TABLE jobs ADD COLUMN broker_id int;
