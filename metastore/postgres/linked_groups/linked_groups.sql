-- The groups that links name, by link and id: for workers, the controller and people.
SELECT link, group_id, kind, state, refusal, asked, answered, coalesce(to_ms(copied_at), 0), coalesce(to_ms(came_at), 0),
       offsets, behind,
       came_at IS NULL AND (EXISTS (SELECT FROM consumer_groups c WHERE c.group_id = g.group_id AND c.state <> 'Empty')
                            OR EXISTS (SELECT FROM group_offsets o WHERE o.group_id = g.group_id AND o.link IS NULL))
  FROM linked_groups g ORDER BY link, group_id
