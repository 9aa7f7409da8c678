-- Whether a group's last offsets are here: metastore.api.linked_groups.LastOffsets; done if no link has to answer.
-- Locks: none. Idempotent: reads only. Cost: a row per link that names the group.
SELECT coalesce(max(CASE WHEN g.asked <= g.answered OR g.came_at IS NOT NULL OR g.refusal <> '' THEN last_done()
                         WHEN g.copied_at IS NOT NULL OR (g.kind = '' AND s.groups_at IS NOT NULL) THEN last_older()
                         ELSE last_none() END), last_done())
  FROM linked_groups g LEFT JOIN link_sources s USING (link)
 WHERE g.group_id = %(group_id)s
