-- Small flush files whose bytes are here until a merge moves what is live of them (decisions/0109).
CREATE TABLE inline_files (
    slot     smallint NOT NULL,        -- what the file's id says (storage/file_id.py)
    file_id  uuid     NOT NULL,
    body     bytea    NOT NULL,
    PRIMARY KEY (slot, file_id)
) PARTITION BY LIST (slot);
-- a reader takes a part of a body: only what is not compressed is cut without being read whole
ALTER TABLE inline_files ALTER COLUMN body SET STORAGE EXTERNAL;
DO $$
BEGIN
    FOR slot IN 0..15 LOOP
        EXECUTE format('CREATE TABLE inline_files_%s PARTITION OF inline_files FOR VALUES IN (%s)'
                       ' WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off)', slot, slot);
    END LOOP;
END $$;
-- A slot is filled, drained by merges, and emptied with TRUNCATE, in this order: rows are never deleted.
CREATE TABLE inline_slots (
    slot         smallint    PRIMARY KEY,
    state        smallint    NOT NULL,  -- metastore.api.inline.InlineSlotState
    since        timestamptz NOT NULL,
    waits_since  timestamptz,           -- while it is drained: birth of its oldest live file as of the last look
    look_at      timestamptz NOT NULL DEFAULT '-infinity'  -- while nothing in it is live: when to look again
) WITH (fillfactor = 50);
INSERT INTO inline_slots (slot, state, since) SELECT slot, 0, now() FROM generate_series(0, 15) AS slot;
-- One row: what was committed before this time is to be moved now, however little and young it is.
CREATE TABLE inline_moves (
    asked_at  timestamptz NOT NULL
);
INSERT INTO inline_moves (asked_at) VALUES ('-infinity');
-- Roles that only read, which get that right on new tables by default, see which small files there are, and no records.
DO $$
DECLARE
    v_right record;
BEGIN
    FOR v_right IN SELECT c.relname, a.grantee::regrole AS role
                     FROM pg_class c, aclexplode(c.relacl) AS a
                    WHERE c.relname ~ '^inline_files(_[0-9]+)?$' AND c.relnamespace = current_schema()::regnamespace
                      AND c.relkind IN ('r', 'p') AND a.grantee NOT IN (0, c.relowner)
                    GROUP BY c.relname, a.grantee HAVING NOT bool_or(a.privilege_type = 'INSERT') LOOP
        EXECUTE format('REVOKE SELECT ON %I FROM %s', v_right.relname, v_right.role);
        EXECUTE format('GRANT SELECT (slot, file_id) ON %I TO %s', v_right.relname, v_right.role);
    END LOOP;
END $$;
