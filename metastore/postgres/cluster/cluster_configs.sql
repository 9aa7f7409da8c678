-- What was set for all brokers while they run.
-- Locks: none. Idempotent: reads only. Cost: one range of the primary key.
SELECT name, value FROM configs WHERE resource_type = broker_resource() AND resource_name = ''
