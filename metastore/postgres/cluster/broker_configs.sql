-- What was set for one broker, and what was set for all brokers where it has no value.
-- Locks: none. Idempotent: reads only. Cost: two ranges of the primary key.
SELECT DISTINCT ON (name) name, value
  FROM configs
 WHERE resource_type = broker_resource() AND resource_name IN ('', %(broker)s::text)
 ORDER BY name, resource_name DESC
