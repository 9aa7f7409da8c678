-- The groups that there are, as of their last saves: the asked ones, or all when group_ids is NULL. A
-- row that was only claimed is none.
-- Locks: none. Idempotent: reads only. Cost: O(groups) rows, one index probe for each that was never saved.
SELECT g.group_id, g.kind, g.state, g.protocol_type
  FROM consumer_groups g
 WHERE (%(group_ids)s::text[] IS NULL OR g.group_id = ANY (%(group_ids)s::text[]))
   AND (g.saved <> '' OR EXISTS (SELECT FROM group_offsets o WHERE o.group_id = g.group_id))
 ORDER BY g.group_id
