-- How full the slots are, and what keeps Postgres' disk filling: metastore.api.inline.InlineState.
-- Locks: none. Idempotent: reads only. Cost: the sizes of sixteen tables, a probe of each, and two views in memory.
CREATE OR REPLACE FUNCTION inline_state()
RETURNS TABLE (slot int, free_slots int, held_bytes bigint, oldest_ms bigint, archive_fails boolean,
               retained_wal_bytes bigint, asked_ms bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT coalesce(max(s.slot) FILTER (WHERE s.state = inline_filling()), -1)::int,
           (count(*) FILTER (WHERE s.state = inline_empty()))::int,
           sum(b.bytes)::bigint,
           coalesce(wall_ms() - to_ms(min(CASE WHEN s.state = inline_draining() THEN s.waits_since
                                               ELSE inline_birth(first_inline_file(s.slot)) END)), 0),
           (SELECT current_setting('archive_mode') <> 'off'
                   AND coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false)
              FROM pg_stat_archiver),
           greatest((SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint
                       FROM pg_replication_slots),
                    (SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), wal_file_end(last_archived_wal)), 0)::bigint
                       FROM pg_stat_archiver WHERE current_setting('archive_mode') <> 'off')),
           (SELECT CASE WHEN asked_at > wall_time() - interval '1 hour' THEN wall_ms() - to_ms(asked_at) ELSE -1 END
              FROM inline_moves)
      FROM inline_slots s
     CROSS JOIN LATERAL (SELECT inline_slot_bytes(s.slot) AS bytes) AS b;
END $$;

-- Where a WAL file ends, by its name; NULL for other names. Postgres keeps what comes after the last archived one: an
-- archive_command that hangs reports no failure.
-- Locks: none. Idempotent: reads only. Cost: none.
CREATE OR REPLACE FUNCTION wal_file_end(p_name text) RETURNS pg_lsn
LANGUAGE sql STABLE STRICT AS $$
    SELECT CASE WHEN p_name ~ '^[0-9A-F]{24}' THEN
        '0/0'::pg_lsn + ('x' || substring(p_name FROM 9 FOR 8))::bit(32)::bigint * 4294967296::numeric
        + (('x' || substring(p_name FROM 17 FOR 8))::bit(32)::bigint + 1) * pg_size_bytes(current_setting('wal_segment_size'))
    END
$$;

-- The first file of a slot, live or not; NULL if it has none. And when a file was created, by its id.
-- Locks: none. Idempotent: reads only. Cost: an index probe.
CREATE OR REPLACE FUNCTION first_inline_file(p_slot smallint) RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT file_id FROM inline_files WHERE slot = p_slot ORDER BY file_id LIMIT 1
$$;

CREATE OR REPLACE FUNCTION inline_birth(p_file_id uuid) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN to_timestamp(('x' || encode(substring(uuid_send(p_file_id) FROM 1 FOR 6), 'hex'))::bit(48)::bigint / 1000.0);

-- Bytes of a slot's rows, with what Postgres needs around them; 0 if it is empty.
-- Locks: none. Idempotent: reads only. Cost: the sizes of two files.
CREATE OR REPLACE FUNCTION inline_slot_bytes(p_slot smallint) RETURNS bigint
LANGUAGE sql VOLATILE STRICT AS $$
    SELECT CASE WHEN pg_relation_size(c.oid) = 0 THEN 0 ELSE pg_relation_size(c.oid) + pg_relation_size(c.reltoastrelid) END
      FROM pg_class c WHERE c.oid = format('inline_files_%s', p_slot)::regclass
$$;
