-- Store what a share group has done in some partitions, all or none; answers the partitions that are there, or NULL when
-- p_coordinator_epoch is no longer the group's, or is of an earlier life: what its holder remembers may be of records
-- that this server never had. The first write of a life keeps what it replaces in found_*: what the life began with.
-- Locks: shares the group's row (a claim waits), then the partitions' rows (a deletion waits), then the rows by
-- partition. Idempotent: yes, the same state is written again. A write with an unknown outcome may arrive after a later
-- one of the same holder: it stores nothing then. Cost: one upsert per partition.
CREATE OR REPLACE FUNCTION store_share_partitions(
    p_group_id           text,
    p_coordinator_epoch  bigint,
    p_revision           bigint,     -- rises with each write under this epoch
    p_keys               bigint[],   -- ascending, each once
    p_starts             bigint[],
    p_kept               bytea[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_known bigint[];
    v_life  int := (SELECT life FROM cluster);
    v_floor bigint := life_floor64(v_life);
BEGIN
    IF NOT is_group_coordinator(p_group_id, p_coordinator_epoch) OR p_coordinator_epoch < v_floor THEN
        RETURN NULL;
    END IF;
    v_known := array(SELECT partition_key FROM partitions WHERE partition_key = ANY (p_keys)
                      ORDER BY partition_key FOR KEY SHARE);
    INSERT INTO share_partitions AS s
           (group_id, partition_key, start_offset, kept, coordinator_epoch, revision, begun_offset)
    SELECT p_group_id, k.partition_key, k.start_offset, k.kept, p_coordinator_epoch, p_revision, k.start_offset
      FROM unnest(p_keys, p_starts, p_kept) AS k (partition_key, start_offset, kept)
     WHERE k.partition_key = ANY (v_known)
     ORDER BY k.partition_key
    ON CONFLICT (group_id, partition_key) DO UPDATE
       SET start_offset = excluded.start_offset, kept = excluded.kept,
           coordinator_epoch = excluded.coordinator_epoch, revision = excluded.revision,
           begun_offset = least(s.begun_offset, excluded.start_offset),
           found_life = CASE WHEN s.coordinator_epoch < v_floor THEN v_life ELSE s.found_life END,
           found_start = CASE WHEN s.coordinator_epoch < v_floor THEN s.start_offset ELSE s.found_start END,
           found_kept = CASE WHEN s.coordinator_epoch < v_floor THEN s.kept ELSE s.found_kept END
     WHERE (s.coordinator_epoch, s.revision) < (excluded.coordinator_epoch, excluded.revision);
    RETURN v_known;
END $$;
