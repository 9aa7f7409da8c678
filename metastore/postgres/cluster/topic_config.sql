-- A config of a topic: its own, else the cluster's under the name that brokers have for it, else NULL.
-- Locks: none. Idempotent: reads only. Cost: three index probes.
CREATE OR REPLACE FUNCTION topic_config(p_topic_id uuid, p_name text, p_broker_name text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT c.value FROM topics t
           JOIN configs c ON c.resource_type = topic_resource() AND c.resource_name = t.name AND c.name = p_name
          WHERE t.topic_id = p_topic_id),
        (SELECT c.value FROM configs c
          WHERE c.resource_type = broker_resource() AND c.resource_name = '' AND c.name = p_broker_name)
    );
$$;
