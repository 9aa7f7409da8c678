-- functions/live_extents.sql; one row of NULLs when nothing is live
SELECT wall_ms(), l.* FROM (SELECT) AS now LEFT JOIN live_extents(%(file_ids)s::uuid[]) AS l ON true
