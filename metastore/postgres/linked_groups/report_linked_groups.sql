-- All groups of a source that its link names, as of one look at every broker of it. A group that the source does not have any
-- more is forgotten, unless it came here; who waits for the last offsets of one that is not copied has them.
-- Locks: the job's row, shared; the link's groups' rows, ascending. Idempotent: yes. Cost: a row per group.
CREATE OR REPLACE FUNCTION report_linked_groups(
    p_job_id bigint, p_epoch bigint, p_link text, p_group_ids text[], p_kinds text[], p_states text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM linked_groups WHERE link = p_link ORDER BY group_id FOR UPDATE;
    DELETE FROM linked_groups WHERE link = p_link AND group_id <> ALL (p_group_ids) AND came_at IS NULL;
    INSERT INTO linked_groups AS g (link, group_id, kind, state)
    SELECT p_link, group_id, kind, state
      FROM unnest(p_group_ids, p_kinds, p_states) AS t (group_id, kind, state)
     ORDER BY group_id
    ON CONFLICT (link, group_id) DO UPDATE SET kind = excluded.kind, state = excluded.state
     WHERE (g.kind, g.state) IS DISTINCT FROM (excluded.kind, excluded.state);
    UPDATE link_sources SET groups_at = wall_time(), groups_problem = '' WHERE link = p_link;
END $$;

-- Say why the offsets of a link's groups are not copied.
-- Locks: the job's row, shared; the link's row. Idempotent: yes. Cost: an update.
CREATE OR REPLACE FUNCTION note_groups_problem(p_job_id bigint, p_epoch bigint, p_link text, p_problem text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    UPDATE link_sources SET groups_problem = p_problem WHERE link = p_link;
END $$;

-- Say why groups are not copied; empty: they are.
-- Locks: the groups' rows. Idempotent: yes. Cost: an update per group that is judged otherwise than before.
CREATE OR REPLACE FUNCTION note_group_refusals(p_links text[], p_group_ids text[], p_refusals text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE linked_groups g SET refusal = t.refusal
      FROM unnest(p_links, p_group_ids, p_refusals) AS t (link, group_id, refusal)
     WHERE g.link = t.link AND g.group_id = t.group_id AND g.refusal IS DISTINCT FROM t.refusal
$$;
