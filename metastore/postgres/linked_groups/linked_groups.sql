-- The groups that links name, by link and id: for workers, the controller and people.
SELECT link, group_id, kind, state, refusal, asked, answered, coalesce(to_ms(copied_at), 0), coalesce(to_ms(came_at), 0),
       offsets, behind
  FROM linked_groups ORDER BY link, group_id
