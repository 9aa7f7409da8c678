-- Make the calling transaction wait for the synchronous standbys when it commits, also if it changes nothing.
-- Postgres shows all sessions a commit that no standby has, if its wait was canceled, or ended with a crash. A
-- transaction that wrote nothing does not wait. So a function that tells a client of what an earlier call did calls this
-- first: the message is behind that call in the WAL, and the standby confirms both.
-- Locks: none. Idempotent: yes. Cost: none without synchronous standbys; with them a WAL record, and its wait.
CREATE OR REPLACE FUNCTION await_standbys() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('synchronous_standby_names') <> '' THEN
        PERFORM pg_logical_emit_message(true, 'headrace', ''::text);
    END IF;
END $$;
