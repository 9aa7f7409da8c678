-- Read pins: whoever holds one may read every file that was live when it was taken.

-- Take a pin. What dies while a statement still runs carries a time from within that statement, and a plan
-- that was made meanwhile still names it; so a pin reaches back as far as a statement may run.
-- Locks: the pin's row. Idempotent: yes, a pin that is there already is renewed. Cost: one upsert.
CREATE OR REPLACE FUNCTION pin_reads(p_pin_id uuid, p_holder text, p_lease interval) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF renew_pin(p_pin_id, p_lease) THEN
        RETURN;
    END IF;
    INSERT INTO read_pins (pin_id, holder, pinned_at, deadline)
    VALUES (p_pin_id, p_holder,
            wall_time() - greatest(current_setting('statement_timeout')::interval, interval '1 minute'),
            wall_time() + p_lease);
END $$;

-- Renew a pin; false for one that ran out or was given back.
-- Locks: the pin's row. Idempotent: yes. Cost: one update.
CREATE OR REPLACE FUNCTION renew_pin(p_pin_id uuid, p_lease interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM read_pins WHERE pin_id = p_pin_id FOR UPDATE;
    UPDATE read_pins SET deadline = wall_time() + p_lease WHERE pin_id = p_pin_id AND deadline >= wall_time();
    RETURN FOUND;
END $$;

-- Files that died before this may be deleted: when the oldest living pin was taken, less its margin.
-- Pins that ran out go.
-- Locks: those rows. Idempotent: yes. Cost: one row per pin.
CREATE OR REPLACE FUNCTION pin_horizon() RETURNS timestamptz
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM read_pins WHERE deadline < wall_time();
    RETURN (SELECT coalesce(min(pinned_at), 'infinity') FROM read_pins);
END $$;
