-- Whether each of these files of bulk writes has a row of a decided attempt.
-- Locks: none. Idempotent: reads only. Cost: one index probe each.
CREATE OR REPLACE FUNCTION bulk_files_in_index(p_file_ids uuid[]) RETURNS SETOF boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM segment_files s WHERE s.file_id = id AND s.state <> file_condemned())
      FROM unnest(p_file_ids) WITH ORDINALITY AS f (id, number)
     ORDER BY number
$$;
