-- Store a consumer group's positions, all or none; answers the partitions that are there, or NULL
-- when p_coordinator_epoch is no longer the group's. From then on no link writes them.
-- Locks: shares the group's row (a claim waits), then the partitions' rows (a deletion waits), then
-- the offsets by partition. Idempotent: yes, the same positions are written again.
-- Cost: one upsert per partition.
CREATE OR REPLACE FUNCTION commit_group_offsets(
    p_group_id           text,
    p_coordinator_epoch  bigint,
    p_keys               bigint[],   -- ascending, each once
    p_offsets            bigint[],
    p_leader_epochs      int[],
    p_metadata           bytea[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_known bigint[];
BEGIN
    IF NOT is_group_coordinator(p_group_id, p_coordinator_epoch) THEN
        RETURN NULL;
    END IF;
    v_known := array(SELECT partition_key FROM partitions WHERE partition_key = ANY (p_keys)
                      ORDER BY partition_key FOR KEY SHARE);
    v_known := v_known || array(SELECT key FROM unnest(p_keys) AS key WHERE is_rendered_key(key));

    INSERT INTO group_offsets AS g
           (group_id, partition_key, committed_offset, leader_epoch, metadata, committed_at, expiry_slot)
    SELECT p_group_id, o.partition_key, o.committed_offset, o.leader_epoch, o.metadata, wall_time(),
           expiry_slot(wall_time())
      FROM unnest(p_keys, p_offsets, p_leader_epochs, p_metadata)
           AS o (partition_key, committed_offset, leader_epoch, metadata)
     WHERE o.partition_key = ANY (v_known)
     ORDER BY o.partition_key
    ON CONFLICT (group_id, partition_key) DO UPDATE
       SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
           metadata = excluded.metadata, committed_at = excluded.committed_at, expiry_slot = excluded.expiry_slot,
           link = NULL;
    RETURN v_known;
END $$;

-- Whether the epoch is the group's; shares its row with other commits, so that claims, saves and
-- expiry wait until the caller's statement ends.
CREATE OR REPLACE FUNCTION is_group_coordinator(p_group_id text, p_coordinator_epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM consumer_groups
      WHERE group_id = p_group_id AND coordinator_epoch = p_coordinator_epoch FOR SHARE;
    RETURN FOUND;
END $$;

-- Ten minutes of the metastore's clock, numbered; see migrations/0006_groups.sql.
CREATE OR REPLACE FUNCTION expiry_slot(p_at timestamptz) RETURNS int
LANGUAGE sql STABLE AS $$
    SELECT floor(extract(epoch FROM p_at) / 600)::int
$$;

-- Whether the key is of a topic that agents render: its partitions have no rows and are always there. Besides
-- `__cluster_metadata` these are both lifecycle topics (numbers -2 and -3), with 50 partitions each.
CREATE OR REPLACE FUNCTION is_rendered_key(p_key bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_key = metadata_log_key() OR (p_key >> 24 IN (-2, -3) AND p_key & 16777215 < 50)
$$;

-- The key of `__cluster_metadata`, partition 0 (topic number -1).
CREATE OR REPLACE FUNCTION metadata_log_key() RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT -1::bigint << 24
$$;
