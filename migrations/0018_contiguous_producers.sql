-- Which producers' stored sequences have no gap, so that an old retry of theirs is known to be stored (decisions/0037).
-- contiguous_life: the life of the metastore in which everything from sequence 0 of this epoch on was appended; -1: not
-- known, as for all rows that are here now. wrapped: the sequences of this epoch went over their end.
ALTER TABLE producer_state
    ADD COLUMN contiguous_life int     NOT NULL DEFAULT -1,
    ADD COLUMN wrapped         boolean NOT NULL DEFAULT false;
