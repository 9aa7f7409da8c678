-- What a worker saw of the source of a link. The first cluster id that answered stays: false, and only the problem is noted,
-- if another cluster answers. A report with a problem, or without a cluster id, keeps what was found before.
-- Locks: the job's row, shared; the link's row. Idempotent: yes. Cost: a row per topic that was or is found.
CREATE OR REPLACE FUNCTION report_source(
    p_job_id bigint, p_epoch bigint, p_link text, p_cluster_id text, p_problem text,
    p_names text[], p_source_ids uuid[], p_counts int[], p_leader_epochs int[], p_configs text[], p_problems text[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_known text;
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    INSERT INTO link_sources (link, cluster_id, seen_at, problem) VALUES (p_link, '', '-infinity', '')
    ON CONFLICT DO NOTHING;
    SELECT cluster_id INTO STRICT v_known FROM link_sources WHERE link = p_link FOR UPDATE;
    IF p_cluster_id <> '' AND v_known NOT IN ('', p_cluster_id) THEN
        UPDATE link_sources
           SET problem = format('another cluster answers: expected=%s found=%s', v_known, p_cluster_id)
         WHERE link = p_link;
        RETURN false;
    END IF;
    UPDATE link_sources
       SET cluster_id = CASE WHEN v_known = '' THEN p_cluster_id ELSE v_known END, problem = p_problem,
           seen_at = CASE WHEN p_problem = '' THEN wall_time() ELSE seen_at END
     WHERE link = p_link;
    IF p_problem <> '' OR p_cluster_id = '' THEN
        RETURN true;
    END IF;
    DELETE FROM found_topics WHERE link = p_link AND name <> ALL (p_names);
    INSERT INTO found_topics AS f (link, name, source_id, partitions, leader_epoch, configs, problem)
    SELECT p_link, name, source_id, count, leader_epoch, configs::jsonb, problem
      FROM unnest(p_names, p_source_ids, p_counts, p_leader_epochs, p_configs, p_problems)
           AS t (name, source_id, count, leader_epoch, configs, problem)
     ORDER BY name
    ON CONFLICT (link, name) DO UPDATE
       SET source_id = excluded.source_id, partitions = excluded.partitions, leader_epoch = excluded.leader_epoch,
           configs = excluded.configs,
           problem = CASE WHEN excluded.problem = '' AND excluded.source_id = f.source_id THEN f.problem
                          ELSE excluded.problem END;
    RETURN true;
END $$;

-- Say why found topics are not copied; empty: they are.
-- Locks: the topics' rows. Idempotent: yes. Cost: an update per topic.
CREATE OR REPLACE FUNCTION note_refused_topics(p_names text[], p_links text[], p_problems text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE found_topics f SET problem = t.problem
      FROM unnest(p_links, p_names, p_problems) AS t (link, name, problem)
     WHERE f.link = t.link AND f.name = t.name AND f.problem <> t.problem
$$;

-- Forget the source of a link that was dropped. The offsets that it copied are the groups' from then on: no link, also none of
-- this name, has their partitions any more.
-- Locks: the link's rows. Idempotent: yes. Cost: a row per found topic, group and promoted partition.
CREATE OR REPLACE FUNCTION forget_link(p_link text) RETURNS void
LANGUAGE sql VOLATILE AS $$
    DELETE FROM linked_groups WHERE link = p_link;
    DELETE FROM promoted_partitions WHERE link = p_link;
    DELETE FROM found_topics WHERE link = p_link;
    DELETE FROM link_sources WHERE link = p_link
$$;
