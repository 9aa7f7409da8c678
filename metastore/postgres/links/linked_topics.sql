-- The copies of all links.
SELECT l.topic_id, t.name, l.link, l.source_id, l.promotion, l.configs::text
  FROM linked_topics l JOIN topics t USING (topic_id) ORDER BY t.name
