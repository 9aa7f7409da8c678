-- A group is about to get members here: ask the workers of these links for its last offsets. Whether one of them has to answer.
-- Locks: the group's rows. Idempotent: a repeated question is another one. Cost: a row per link.
CREATE OR REPLACE FUNCTION ask_last_offsets(p_links text[], p_group_id text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO linked_groups AS g (link, group_id, kind, state, asked)
    SELECT link, p_group_id, '', '', 1 FROM unnest(p_links) AS link ORDER BY link
    ON CONFLICT (link, group_id) DO UPDATE SET asked = g.asked + 1
     WHERE g.came_at IS NULL AND coalesce(g.refusal, '') = '';
    RETURN FOUND;
END $$;
