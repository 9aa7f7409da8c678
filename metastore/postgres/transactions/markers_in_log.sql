-- By (topic, partition, offset, producer, epoch of its batches, outcome): whether that marker is in the log, or may come
-- back with what was removed (removed_extents).
-- Locks: none. Idempotent: reads only. Cost: two index probes each, and three more for one that is not.
CREATE OR REPLACE FUNCTION markers_in_log(
    p_topics uuid[], p_partitions int[], p_offsets bigint[], p_producers bigint[], p_epochs int[], p_commits boolean[]
) RETURNS SETOF boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM partitions p JOIN extents e USING (partition_key)
                    WHERE p.topic_id = t.topic AND p.partition_index = t.index AND e.last_offset = t.marker
                      AND e.file_id IN (marker_file_id(producer, epoch::smallint, commits),
                                        marker_file_id(producer, (least(epoch, 32766) + 1)::smallint, commits)))
        OR EXISTS (SELECT FROM (SELECT partition_key FROM partitions
                                 WHERE topic_id = t.topic AND partition_index = t.index
                                UNION ALL
                                SELECT partition_key FROM deleted_partitions
                                 WHERE topic_id = t.topic AND partition_index = t.index) AS p
                     JOIN removed_extents e USING (partition_key)
                    WHERE e.last_offset = t.marker
                      AND e.file_id IN (marker_file_id(producer, epoch::smallint, commits),
                                        marker_file_id(producer, (least(epoch, 32766) + 1)::smallint, commits)))
      FROM unnest(p_topics, p_partitions, p_offsets, p_producers, p_epochs, p_commits)
           WITH ORDINALITY AS t (topic, index, marker, producer, epoch, commits, number)
     ORDER BY number
$$;
