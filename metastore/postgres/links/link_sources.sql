-- The source of each link that a worker has looked at.
SELECT link, cluster_id, CASE WHEN seen_at = '-infinity' THEN 0 ELSE to_ms(seen_at) END, problem, groups_problem
  FROM link_sources ORDER BY link
