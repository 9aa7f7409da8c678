-- Empty the slots of commit_log and commit_answers that are used next. The agents call it in turn, about every
-- 15 s; one slot per call, so that no two ACCESS EXCLUSIVE locks are held at once. Returns which slot.
-- In tick T rows are written to slot T (answers: from T - 4 to T + 1, by their file's birth), so slots
-- T + 2 and T + 3 hold only what is at least five ticks old. A slot that is used before it
-- was emptied works as well: old rows stay in it until its next turn, and are harmless, as seqs and
-- file ids are never used twice.
-- Locks: the log's row in log_slots (left out if another session empties one), then the slot's table, for at most
-- 10 ms, three times: the feed and repeated commits, which
-- read the slots, wait behind this call for so long. A new commit does not touch that slot.
-- Idempotent: a slot is emptied once per turn. Cost: nothing to do: two rows read.
CREATE OR REPLACE FUNCTION rotate_log_slots() RETURNS text
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '10ms'
AS $$
DECLARE
    v_log   text;
    v_turn  bigint;
    v_table text;
BEGIN
    FOR v_log, v_turn IN SELECT name, cleared_tick + 1 FROM log_slots ORDER BY name LOOP
        CONTINUE WHEN greatest(v_turn, log_tick(v_log) + 2) > log_tick(v_log) + 3;
        SELECT cleared_tick + 1 INTO v_turn FROM log_slots WHERE name = v_log FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        v_turn := greatest(v_turn, log_tick(v_log) + 2);
        CONTINUE WHEN v_turn > log_tick(v_log) + 3;
        v_table := format('%s_%s', v_log, v_turn % 8);
        IF empty_slot(v_log, v_turn, v_table) THEN
            UPDATE log_slots SET cleared_tick = v_turn WHERE name = v_log;
            RETURN v_table;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Whether the slot is empty now. It is not if another session reads it all the time, or if its turn came near.
-- Locks: the slot's table; the caller holds the log's row. Idempotent: yes. Cost: a new file for the table.
CREATE OR REPLACE FUNCTION empty_slot(p_log text, p_turn bigint, p_table text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    FOR v_try IN 1 .. 3 LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', p_table);
            IF p_turn < log_tick(p_log) + 2 THEN
                RETURN false;
            END IF;
            EXECUTE format('TRUNCATE %I', p_table);
            RETURN true;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.01);
        END;
    END LOOP;
    RETURN false;
END $$;
