-- The time from which agents may be fenced, or their node ids taken over, for silence. After the metastore was
-- unavailable, none is until one full session timeout has passed: they were silent because it was.
-- It was unavailable if it was restarted, and if no agent at all was heard for half a session timeout
-- (an outage between the agents and a Postgres that kept running, a fail-over, a stopped machine).
-- Locks: lease_watch's only row, and only after such a gap; before metadata_head.
-- Idempotent: yes. Cost: reads agent_leases, one row per agent.
CREATE OR REPLACE FUNCTION silence_counts_from(p_session_timeout interval) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_last_contact_at  timestamptz;
    v_resumed_at       timestamptz;
    v_session          interval := granted_session(p_session_timeout);
BEGIN
    SELECT greatest(w.last_contact_at, (SELECT max(l.last_contact_at) FROM agent_leases l)), w.resumed_at
      INTO v_last_contact_at, v_resumed_at
      FROM lease_watch w;
    IF v_last_contact_at < wall_time() - v_session / 2 THEN
        UPDATE lease_watch SET last_contact_at = wall_time(), resumed_at = wall_time()
        RETURNING resumed_at INTO v_resumed_at;
    END IF;
    RETURN greatest(v_resumed_at, pg_postmaster_start_time()) + v_session;
END $$;

-- wall_ms() as leases keep it.
CREATE OR REPLACE FUNCTION wall_time() RETURNS timestamptz
LANGUAGE sql VOLATILE AS $$
    SELECT to_timestamp(wall_ms() / 1000.0)
$$;
