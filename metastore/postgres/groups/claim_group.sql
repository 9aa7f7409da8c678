-- Make a registered, unfenced agent a group's holder, under an epoch that no other claim ever got.
-- Answers why not, if so: 'agent' (it is not registered so, or fenced) or 'held' by another live agent.
-- A live holder answers its members from memory; it releases the group when it sees that it is no longer the
-- group's coordinator (release_groups.sql), or when its lease ran out and it is fenced: its own count
-- of the lease began earlier, so it has stopped answering by then.
-- Locks: the group's row. Idempotent: a repeated claim only raises the epoch again. Cost: one upsert.
CREATE OR REPLACE FUNCTION claim_group(
    p_group_id             text,
    p_node_id              int,
    p_broker_epoch         bigint,
    OUT refusal            text,
    OUT coordinator_epoch  bigint,
    OUT kind               text,
    OUT state              text,
    OUT protocol_type      text,
    OUT subscribed         text[],
    OUT saved              bytea
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_group  consumer_groups;
BEGIN
    IF NOT is_live_agent(p_node_id, p_broker_epoch) THEN
        refusal := 'agent';
        RETURN;
    END IF;
    LOOP  -- until a row is locked: the one that was there may be forgotten in between
        INSERT INTO consumer_groups (group_id, coordinator_epoch, node_id, saved, expiry_slot)
        VALUES (p_group_id, 0, -1, '', expiry_slot(wall_time()))
        ON CONFLICT (group_id) DO NOTHING;
        SELECT * INTO v_group FROM consumer_groups g WHERE g.group_id = p_group_id FOR UPDATE;
        EXIT WHEN FOUND;
    END LOOP;
    IF (v_group.node_id, v_group.broker_epoch) <> (p_node_id, p_broker_epoch)
       AND is_live_agent(v_group.node_id, v_group.broker_epoch) THEN
        refusal := 'held';
        RETURN;
    END IF;
    UPDATE consumer_groups g
       SET coordinator_epoch = nextval('group_coordinator_epochs'), node_id = p_node_id, broker_epoch = p_broker_epoch
     WHERE g.group_id = p_group_id
    RETURNING g.coordinator_epoch, g.kind, g.state, g.protocol_type, g.subscribed, g.saved
         INTO coordinator_epoch, kind, state, protocol_type, subscribed, saved;
END $$;

-- Whether an agent is registered so and may answer clients.
CREATE OR REPLACE FUNCTION is_live_agent(p_node_id int, p_broker_epoch bigint) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM agents
                    WHERE node_id = p_node_id AND broker_epoch = p_broker_epoch AND NOT fenced)
$$;
