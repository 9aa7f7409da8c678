-- functions/live_extents.sql, and what the largest batch of each topic may be; one row of NULLs when nothing is live
SELECT wall_ms(), l.*, topic_config(l.topic, 'max.message.bytes', 'message.max.bytes')
  FROM (SELECT) AS now LEFT JOIN live_extents(%(file_ids)s::uuid[]) AS l ON true
