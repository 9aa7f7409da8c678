-- An agent that the active controller found gone is hidden from clients before its lease ends (decisions/0044).
-- hidden_before: once per registration; later only if it is silent, too, so that an agent that the controller alone
-- cannot reach does not disappear again and again.
ALTER TABLE agents
    ADD COLUMN hidden        boolean NOT NULL DEFAULT false,
    ADD COLUMN hidden_before boolean NOT NULL DEFAULT false;
