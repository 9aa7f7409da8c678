-- The active controller's lease: one row, judged by the database's clock read after its lock.
-- The controller's row is locked before lease_watch, metadata_head and everything else.

-- Renew the lease if p_incarnation_id holds it, or take it over if it ran out; who holds it now, and the length that
-- is granted: two thirds of the cluster's controller.lease.ms, so that a standby, which asks at most a third of that
-- time after the end, is active controller.lease.ms after the last renewal; p_lease while the cluster has no value. The stored end never
-- moves back while the holder is the same, and is at least p_lease from now: a holder that does not get the answer,
-- or has a version that does not read lease_ms, trusts its lease until then.
-- Locks: the controller's row; none for a standby that finds the lease held.
-- Idempotent: who holds the lease gets the same epoch again. Cost: one HOT update.
CREATE OR REPLACE FUNCTION hold_controller_lease(
    p_controller_id       int,
    p_incarnation_id      uuid,
    p_lease               interval,
    OUT controller_id     int,
    OUT controller_epoch  bigint,
    OUT is_own            boolean,
    OUT lease_ms          bigint
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_now       timestamptz;
    v_deadline  timestamptz;
    v_granted   interval := coalesce(cluster_interval('controller.lease.ms') * 2 / 3, p_lease);
BEGIN
    lease_ms := interval_ms(v_granted);
    SELECT c.controller_id, c.controller_epoch, c.incarnation_id = p_incarnation_id, c.deadline
      INTO controller_id, controller_epoch, is_own, v_deadline
      FROM controller c;
    IF NOT is_own AND v_deadline >= wall_time() THEN
        RETURN;
    END IF;

    SELECT c.controller_id, c.controller_epoch, c.incarnation_id = p_incarnation_id, c.deadline
      INTO controller_id, controller_epoch, is_own, v_deadline
      FROM controller c FOR NO KEY UPDATE;
    v_now := wall_time();
    IF is_own THEN
        controller_id := p_controller_id;  -- a leased node id may have changed
        UPDATE controller
           SET controller_id = p_controller_id, deadline = greatest(v_deadline, v_now + greatest(v_granted, p_lease));
    ELSIF v_deadline < v_now THEN
        controller_id := p_controller_id;
        controller_epoch := controller_epoch + 1;
        is_own := true;
        UPDATE controller
           SET controller_id = p_controller_id, incarnation_id = p_incarnation_id,
               controller_epoch = hold_controller_lease.controller_epoch,
               deadline = v_now + greatest(v_granted, p_lease);
    END IF;
END $$;

-- Take the lease over although it has not ended: the holder of p_gone_epoch is gone. Every action of a controller checks
-- its epoch, so a holder that is not gone after all changes nothing from then on. The answer is hold_controller_lease's.
-- Locks: the controller's row. Idempotent: under p_gone_epoch only one caller takes over.
-- Cost: one HOT update.
CREATE OR REPLACE FUNCTION succeed_controller(
    p_controller_id       int,
    p_incarnation_id      uuid,
    p_lease               interval,
    p_gone_epoch          bigint,
    OUT controller_id     int,
    OUT controller_epoch  bigint,
    OUT is_own            boolean,
    OUT lease_ms          bigint
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    UPDATE controller SET deadline = '-infinity'
     WHERE controller_epoch = p_gone_epoch AND incarnation_id <> p_incarnation_id;
    SELECT h.controller_id, h.controller_epoch, h.is_own, h.lease_ms
      INTO controller_id, controller_epoch, is_own, lease_ms
      FROM hold_controller_lease(p_controller_id, p_incarnation_id, p_lease) AS h;
END $$;

-- Whether p_controller_epoch is still the active controller's. True holds until the statement ends.
-- Locks: the controller's row, shared: a take-over waits for the action, and the action is done before it.
-- Idempotent: reads only. Cost: one row.
CREATE OR REPLACE FUNCTION is_controller(p_controller_epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM controller WHERE controller_epoch = p_controller_epoch FOR SHARE;
    RETURN FOUND;
END $$;

-- The holder of the lease; -1 while there is none. Locks: none. Idempotent: reads only. Cost: one row.
CREATE OR REPLACE FUNCTION active_controller_id() RETURNS int
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce((SELECT controller_id FROM controller WHERE deadline >= wall_time()), -1)
$$;
