-- Empty the slots of commit_log and commit_answers that are used next. The agents call it in turn, about every
-- 15 s; one slot per call, so that no two ACCESS EXCLUSIVE locks are held at once. Returns which slot.
-- In tick T rows are written to slot T (answers: from T - 4 to T + 1, by their file's birth), so slots
-- T + 2 and T + 3 hold only what is at least five ticks old. A slot that is used before it
-- was emptied works as well: old rows stay in it until its next turn, and do no harm, as seqs and
-- file ids are never used twice.
-- Locks: advisory (7203, 0), tried only; then the slot's table, for at most 100 ms.
-- Idempotent: a slot is emptied once per turn. Cost: nothing to do: two rows read.
CREATE OR REPLACE FUNCTION rotate_log_slots() RETURNS text
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_log   text;
    v_turn  bigint;
    v_table text;
BEGIN
    FOR v_log, v_turn IN SELECT name, cleared_tick + 1 FROM log_slots ORDER BY name LOOP
        v_turn := greatest(v_turn, log_tick(v_log) + 2);
        CONTINUE WHEN v_turn > log_tick(v_log) + 3 OR NOT pg_try_advisory_xact_lock(7203, 0);
        v_table := format('%s_%s', v_log, v_turn % 8);
        BEGIN
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', v_table);
            CONTINUE WHEN v_turn < log_tick(v_log) + 2;  -- we waited, and its turn is near
            EXECUTE format('TRUNCATE %I', v_table);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;  -- another session reads it: the next call tries again
        END;
        UPDATE log_slots SET cleared_tick = v_turn WHERE name = v_log AND cleared_tick < v_turn;
        RETURN v_table;
    END LOOP;
    RETURN NULL;
END $$;
