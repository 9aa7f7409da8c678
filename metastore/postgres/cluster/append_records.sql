-- Append records that no other function writes, unless the log has moved on: then false, and nothing
-- happened. NULL for a stale controller epoch. Feature levels and configs are projected, the rest is only
-- in the log. No config is named twice.
-- Locks: controller (shared, if an epoch is given), metadata_head. Idempotent: a repeated call finds the
-- head moved and does nothing. Cost: one row per record, one index probe per changed partition and per config.
CREATE OR REPLACE FUNCTION append_records(
    p_controller_epoch  bigint,
    p_expected_head     bigint,
    p_records           bytea[],
    p_format            int,         -- the lowest metadata.format that has them all
    p_topic_ids         uuid[],      -- one element per changed partition in each of these two
    p_indexes           int[],
    p_feature_names     text[],      -- one element per feature in each of these three
    p_feature_mins      smallint[],
    p_feature_maxs      smallint[],  -- NULL: no longer used
    p_config_types      smallint[],  -- one element per config in each of these four
    p_config_resources  text[],
    p_config_names      text[],
    p_config_values     text[]       -- NULL: taken away
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF p_controller_epoch IS NOT NULL AND NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    IF p_format > metadata_format() THEN
        RAISE EXCEPTION 'metadata.format is too low for these records: wanted=% active=%', p_format, metadata_format();
    END IF;
    -- a record of an unknown partition would stop every reader of the log
    IF EXISTS (SELECT FROM unnest(p_topic_ids, p_indexes) AS c (topic_id, index)
                WHERE NOT EXISTS (SELECT FROM partitions p
                                   WHERE p.topic_id = c.topic_id AND p.partition_index = c.index)) THEN
        RAISE EXCEPTION 'a partition is not there: topic_ids=% partitions=%', p_topic_ids, p_indexes;
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);

    DELETE FROM features WHERE name = ANY (p_feature_names);
    INSERT INTO features (name, min_level, max_level)
    SELECT f.name, f.min_level, f.max_level
      FROM unnest(p_feature_names, p_feature_mins, p_feature_maxs) AS f (name, min_level, max_level)
     WHERE f.max_level IS NOT NULL;

    DELETE FROM configs c
     USING unnest(p_config_types, p_config_resources, p_config_names) AS gone (resource_type, resource_name, name)
     WHERE (c.resource_type, c.resource_name, c.name) = (gone.resource_type, gone.resource_name, gone.name);
    INSERT INTO configs (resource_type, resource_name, name, value)
    SELECT n.resource_type, n.resource_name, n.name, n.value
      FROM unnest(p_config_types, p_config_resources, p_config_names, p_config_values)
           AS n (resource_type, resource_name, name, value)
     WHERE n.value IS NOT NULL;
    UPDATE metadata_head SET configs_offset = next_offset WHERE cardinality(p_config_names) > 0;
    RETURN true;
END $$;

-- The active metadata.format; 1 in a log that says nothing about it.
-- Locks: none. Idempotent: reads only. Cost: one row.
CREATE OR REPLACE FUNCTION metadata_format() RETURNS int
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce((SELECT max_level FROM features WHERE name = 'metadata.format'), 1)
$$;
