-- Ask for the controller's lease (controller_lease.sql), and read what each round of a controller needs to know as well:
-- the milliseconds until another holder's lease ends, the next offset of the metadata log, and whether some agent's
-- lease has ended (fence_silent_agents.sql judges it again, under its locks). The last three are as of the call's start.
-- Locks: the controller's row; none for a standby that finds the lease held.
-- Idempotent: who holds the lease gets the same epoch again. Cost: one HOT update; reads agents and agent_leases, one
-- row per agent.
SELECT l.controller_id, l.controller_epoch, l.is_own, l.lease_ms,
       CASE WHEN l.is_own OR c.deadline < wall_time() THEN 0 ELSE interval_ms(c.deadline - wall_time()) END,
       h.next_offset,
       EXISTS (SELECT FROM agent_leases s JOIN agents a USING (node_id)
                WHERE NOT a.fenced AND s.held_until < wall_time())
  FROM assert_life(%(life)s::int) AS life (is_current)
 CROSS JOIN controller c
 CROSS JOIN metadata_head h
 CROSS JOIN LATERAL hold_controller_lease(
       CASE WHEN life.is_current THEN %(controller_id)s::int END, %(incarnation_id)s::uuid,
       %(lease_ms)s::bigint * interval '1 ms') AS l
