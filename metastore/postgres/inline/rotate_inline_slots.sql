-- Begin a new slot when the one that fills is full or old, and empty one slot that is drained. A slot begins only after it
-- was emptied; without an empty one a full slot takes no more, and files go to the bucket. Returns how many were emptied.
-- Agents call it in turn, about every second; one slot per call, so that no two ACCESS EXCLUSIVE locks are held at once.
-- Locks: the row of slot 0 (left out if another session is here), the slots' rows; then a slot's table, for at most 10 ms:
-- readers, which look into all slots, wait behind this call for so long, and while the slot is looked through. Commits use
-- another slot.
-- Idempotent: yes. Cost: nothing to do: the slots' rows and sizes; to empty one: two or three probes per file in it, twice.
CREATE OR REPLACE FUNCTION rotate_inline_slots(p_slot_bytes bigint, p_slot_ms bigint) RETURNS int
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '10ms'
AS $$
DECLARE
    v_filling smallint;
    v_bytes   bigint;
    v_next    smallint;
    v_free    int;
    v_slot    smallint;
    v_live    uuid;
BEGIN
    PERFORM FROM inline_slots WHERE slot = 0 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    -- a commit that was repeated late has put its file into a slot that was emptied meanwhile
    UPDATE inline_slots SET state = inline_draining()
     WHERE state = inline_empty() AND first_inline_file(slot) IS NOT NULL;
    SELECT slot INTO v_filling FROM inline_slots WHERE state = inline_filling();
    v_bytes := coalesce(inline_slot_bytes(v_filling), 0);
    IF v_filling IS NULL OR v_bytes >= p_slot_bytes
       OR inline_birth(first_inline_file(v_filling)) <= wall_time() - p_slot_ms * interval '1 ms'
    THEN
        SELECT slot INTO v_next FROM inline_slots WHERE state = inline_empty() ORDER BY since, slot LIMIT 1;
        IF v_next IS NOT NULL OR v_bytes >= p_slot_bytes THEN
            UPDATE inline_slots SET state = inline_draining() WHERE slot = v_filling;
        END IF;
        UPDATE inline_slots SET state = inline_filling(), since = wall_time() WHERE slot = v_next;
    END IF;
    SELECT count(*) INTO v_free FROM inline_slots WHERE state = inline_empty();
    FOR v_slot IN SELECT slot FROM inline_slots
                   WHERE state = inline_draining() AND look_at <= wall_time() ORDER BY since, slot LOOP
        v_live := first_live_inline_file(v_slot);
        UPDATE inline_slots SET waits_since = inline_birth(v_live)
         WHERE slot = v_slot AND waits_since IS DISTINCT FROM inline_birth(v_live);
        CONTINUE WHEN v_live IS NOT NULL;
        IF NOT is_inline_slot_kept(v_slot, v_free) AND empty_inline_slot(v_slot, v_free) THEN
            UPDATE inline_slots SET state = inline_empty(), since = wall_time(), look_at = '-infinity' WHERE slot = v_slot;
            RETURN 1;
        END IF;
        UPDATE inline_slots SET look_at = wall_time() + interval '5 seconds' WHERE slot = v_slot;
    END LOOP;
    RETURN 0;
END $$;

-- The oldest file of a slot that is live; NULL if none is. A file that was not committed is not.
-- Locks: none. Idempotent: reads only. Cost: two probes per file up to the first live one.
CREATE OR REPLACE FUNCTION first_live_inline_file(p_slot smallint) RETURNS uuid
LANGUAGE plpgsql VOLATILE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    RETURN (SELECT i.file_id FROM inline_files i
             WHERE i.slot = p_slot
               AND (EXISTS (SELECT FROM segment_files f WHERE f.file_id = i.file_id AND f.dead_at IS NULL)
                    OR EXISTS (SELECT FROM extents e WHERE e.file_id = i.file_id))
             ORDER BY i.file_id LIMIT 1);
END $$;

-- Whether a slot without live files is kept: one of them became dead a moment ago, or since a merge planned to read it, within
-- minutes; and while there are slots enough, also if a deleted topic that has records in it can still be restored.
-- Locks: none. Idempotent: reads only. Cost: a probe per file, and the removed extents of deleted topics; not those that retention
-- removed, which are many: a look at them for each file would hold the slot's lock for seconds.
CREATE OR REPLACE FUNCTION is_inline_slot_kept(p_slot smallint, p_free int) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_horizon timestamptz := least(wall_time(), inline_horizon()) - interval '10 seconds';
BEGIN
    IF EXISTS (SELECT FROM inline_files i JOIN segment_files f USING (file_id)
                WHERE i.slot = p_slot AND f.dead_at >= v_horizon) THEN
        RETURN true;
    END IF;
    RETURN p_free >= 4 AND EXISTS (
        SELECT FROM deleted_partitions d
         CROSS JOIN LATERAL (SELECT r.file_id FROM removed_extents r
                              WHERE r.partition_key = d.partition_key
                                AND is_inline(r.file_id) AND inline_slot(r.file_id) = p_slot) AS removed
         WHERE EXISTS (SELECT FROM inline_files i WHERE i.slot = p_slot AND i.file_id = removed.file_id));
END $$;

-- The time of the oldest plan of a merge that may read inline files, of the last two minutes: a row that a later plan misses
-- was moved by another merge, and is located again. Scans wait until what they plan is moved: their pins, which last for
-- hours, keep nothing here.
-- Locks: none. Idempotent: reads only. Cost: one row per unfinished job.
CREATE OR REPLACE FUNCTION inline_horizon() RETURNS timestamptz
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(min(leased_at), 'infinity') FROM jobs
     WHERE state = job_leased() AND kind = 'compact' AND due_at >= wall_time()
       AND leased_at > wall_time() - interval '2 minutes'
$$;

-- Whether the slot is empty now. It is not if it is read all the time, or got a file meanwhile.
-- Locks: the slot's table. Idempotent: yes. Cost: as the looks into it, and new files for the table.
CREATE OR REPLACE FUNCTION empty_inline_slot(p_slot smallint, p_free int) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    EXECUTE format('LOCK TABLE inline_files_%s IN ACCESS EXCLUSIVE MODE', p_slot);
    IF first_live_inline_file(p_slot) IS NOT NULL OR is_inline_slot_kept(p_slot, p_free) THEN
        RETURN false;
    END IF;
    EXECUTE format('TRUNCATE inline_files_%s', p_slot);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;
