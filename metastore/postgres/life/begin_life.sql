-- Begin the life that the bucket names, if it is the one that this server prepared; false if it is not, or if
-- the metadata log moved on since the caller made its snapshot. All numbers rise to the life's (life_numbers.sql),
-- and the metadata log continues at the life's first offset from a snapshot: every follower begins there.
-- Leases of the old life end: controller and group coordinators are claimed again, under epochs of the new life.
-- Open transactions are aborted, and all transactional ids forgotten: what was acknowledged may be lost (decisions/0060).
-- Nothing else is lost: producer state, offsets and jobs stay, and a file that was stored before commits now.
--
-- Locks: advisory (life_lock(), 0), exclusive: no writing call is under way; then what it changes.
-- Idempotent: yes, a life that has begun stays as it is. Cost: one update per partition, and the ends of open transactions.
CREATE OR REPLACE FUNCTION begin_life(
    p_life            int,
    p_incarnation_id  uuid,
    p_expected_head   bigint,   -- of the metadata log, where p_snapshot was made
    p_snapshot        bytea,    -- the metadata image at life_floor_log(p_life)
    p_last_record     bytea     -- what the log holds just below: who starts from the snapshot knows the log by it
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_cluster cluster;
    v_floor   bigint := life_floor_log(p_life);
BEGIN
    PERFORM pg_advisory_xact_lock(life_lock(), 0);
    SELECT * INTO v_cluster FROM cluster;
    IF v_cluster.life = p_life AND v_cluster.incarnation_id = p_incarnation_id THEN
        RETURN true;
    END IF;
    IF v_cluster.life >= p_life OR v_cluster.next_incarnation_id IS DISTINCT FROM p_incarnation_id
       OR v_cluster.next_timeline <> server_timeline() OR lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    UPDATE cluster
       SET life = p_life, incarnation_id = p_incarnation_id, timeline = server_timeline(),
           system_identifier = (SELECT s.system_identifier FROM pg_control_system() AS s), database_oid = own_database(),
           next_incarnation_id = NULL, next_timeline = NULL;

    DELETE FROM metadata_log;
    DELETE FROM metadata_snapshots;
    INSERT INTO metadata_log (record_offset, record, appended_at) VALUES (v_floor - 1, p_last_record, wall_time());
    INSERT INTO metadata_snapshots (end_offset, data, created_at) VALUES (v_floor, p_snapshot, wall_time());
    UPDATE metadata_head SET next_offset = v_floor;

    UPDATE controller
       SET controller_epoch = greatest(controller_epoch, life_floor32(p_life)), deadline = '-infinity',
           incarnation_id = '00000000-0000-0000-0000-000000000000';
    PERFORM setval('group_coordinator_epochs', greatest(last_value, life_floor64(p_life))) FROM group_coordinator_epochs;
    -- a lost epoch or offset of the lifecycle is among the next million
    PERFORM setval('segment_epochs', least(greatest(last_value + life_floor32(1), life_floor32(p_life)), 2147483647))
       FROM segment_epochs;  -- at its end: no job is leased any more, and the rest continues
    UPDATE remote_log_heads SET next_offset = next_offset + life_floor32(1), next_audit_offset = next_audit_offset + life_floor32(1);
    UPDATE partitions SET leader_epoch = greatest(leader_epoch + 1, life_floor32(p_life));
    PERFORM forget_transactions();
    RETURN true;
END $$;
