-- What the sources of all links have.
SELECT link, name, source_id, partitions, leader_epoch, configs::text, problem FROM found_topics ORDER BY link, name
