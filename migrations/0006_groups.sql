-- Who holds a group, what may be told of it without loading it, and when its offsets expire.

-- Epochs are never used twice, also when a group goes and another of its name comes: an old
-- coordinator's late write finds its epoch nowhere.
CREATE SEQUENCE group_coordinator_epochs;
SELECT setval('group_coordinator_epochs', max(coordinator_epoch)) FROM consumer_groups HAVING count(*) > 0;

ALTER TABLE consumer_groups RENAME COLUMN state TO saved;          -- the coordinator's own bytes; '' before the first save
ALTER TABLE consumer_groups
    ADD COLUMN broker_epoch   bigint NOT NULL DEFAULT -1,          -- with node_id: who holds the group; -1: nobody
    ADD COLUMN kind           text   NOT NULL DEFAULT 'classic',
    ADD COLUMN state          text   NOT NULL DEFAULT 'Empty',     -- Kafka's name, as of the last save
    ADD COLUMN protocol_type  text   NOT NULL DEFAULT '',
    ADD COLUMN subscribed     text[],                              -- its members' topics; NULL: not known
    ADD COLUMN empty_since    timestamptz,                         -- NULL while it has members or never had any
    ADD COLUMN expiry_slot    int    NOT NULL DEFAULT 0;
UPDATE consumer_groups SET state = 'Stable', protocol_type = 'consumer' WHERE saved <> '';
-- Whoever assigned itself committed without a group; from now on every position belongs to one, which expires it.
INSERT INTO consumer_groups (group_id, coordinator_epoch, node_id, saved)
SELECT DISTINCT group_id, 0, -1, ''::bytea FROM group_offsets
ON CONFLICT DO NOTHING;

-- Ten minutes each: when an offset, or a group without any, is old enough to be looked at for expiry
-- (functions/expire_group_offsets.sql). A column of its own, as few commits change it: the others stay HOT.
ALTER TABLE group_offsets ADD COLUMN expiry_slot int NOT NULL DEFAULT 0;
CREATE INDEX group_offsets_expiry ON group_offsets (expiry_slot);
CREATE INDEX consumer_groups_expiry ON consumer_groups (expiry_slot);

-- Clients' own text may hold NUL, which text may not (confluent-kafka ends it with one).
ALTER TABLE group_offsets ALTER COLUMN metadata TYPE bytea USING convert_to(metadata, 'UTF8');
DROP FUNCTION IF EXISTS commit_group_offsets(text, bigint, bigint[], bigint[], int[], text[]);
