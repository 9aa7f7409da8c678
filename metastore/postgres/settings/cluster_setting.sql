-- The settings with one value in the cluster, from the projection of the metadata log. Callers decide what happens
-- while there is no value.

-- The value as text; NULL while there is none.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION cluster_setting(p_name text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT value FROM configs WHERE resource_type = broker_resource() AND resource_name = '' AND name = p_name
$$;

-- The value in milliseconds as an interval; NULL while there is none. At most about 3,000 years: a longer one could
-- not be subtracted from a timestamp.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION cluster_interval(p_name text) RETURNS interval
LANGUAGE sql STABLE AS $$
    SELECT least(value, 1e14)::bigint * interval '1 ms'
      FROM (SELECT cluster_setting(p_name)::numeric AS value) AS known
     WHERE value IS NOT NULL  -- least() would ignore it
$$;
