-- Which offsets of a damaged extent cannot be read (decisions/0092): the extent's other batches can. An agent that found
-- the damage while it served a reader says so; NULL: only a merge or cleaning found it, and at most all of them.
ALTER TABLE damaged_extents
    ADD COLUMN first_damaged bigint,
    ADD COLUMN last_damaged  bigint;
