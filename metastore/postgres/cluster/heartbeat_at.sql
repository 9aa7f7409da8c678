-- An agent's heartbeat (heartbeat.sql), and the record before the end of its image as the log has it: if that is the one
-- that the agent applied, and the log ends there, there is nothing to read. NULL if the log does not have it any more.
-- Locks: as heartbeat. Idempotent: yes. Cost: as heartbeat; one index probe.
SELECT called.is_caught_up, called.is_fenced, called.should_shut_down, called.metadata_head, called.controller_id,
       called.session_timeout_ms, l.record
  FROM assert_life(%(life)s::int) AS life (is_current)
 CROSS JOIN LATERAL heartbeat(
       p_node_id => CASE WHEN life.is_current THEN %(node_id)s::int END, p_broker_epoch => %(broker_epoch)s::bigint,
       p_metadata_offset => %(metadata_offset)s::bigint, p_want_fence => %(want_fence)s::boolean,
       p_want_shut_down => %(want_shut_down)s::boolean,
       p_session_timeout => %(session_timeout_ms)s::bigint * interval '1 ms',
       p_max_lag => %(max_lag)s::bigint) AS called
  LEFT JOIN metadata_log l ON l.record_offset = %(metadata_offset)s::bigint - 1
