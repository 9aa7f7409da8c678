-- The groups of a link with coordinators that wait for their last offsets.
SELECT link, group_id, kind, state, refusal, asked, answered, coalesce(to_ms(copied_at), 0), coalesce(to_ms(came_at), 0),
       offsets, behind, false
  FROM linked_groups
 WHERE link = %(link)s AND asked > answered AND coalesce(refusal, '') = '' AND came_at IS NULL
 ORDER BY group_id
