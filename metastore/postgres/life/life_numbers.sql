-- The numbers that a life of the metastore may hand out: the arithmetic of metastore/life/numbers.py.
-- A life's numbers begin above every number of an earlier life, so that none is handed out twice although
-- a promotion or a restore lost the rows that say so.
-- Locks: none. Idempotent: pure, but for the two that read the cluster's row. Cost: none worth naming.

-- Producer ids, group coordinator epochs.
CREATE OR REPLACE FUNCTION life_floor64(p_life int) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_life::bigint << 40;

-- Offsets of the metadata log, and with them broker epochs and topic numbers, which have 39 bits.
CREATE OR REPLACE FUNCTION life_floor_log(p_life int) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_life::bigint << 27;

-- Leader epochs, controller epochs, group generations; job epochs, which continue above (begin_life.sql).
CREATE OR REPLACE FUNCTION life_floor32(p_life int) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN p_life << 20;

-- p_last itself, if this life may hand out the numbers up to it; an error that names p_what if not.
CREATE OR REPLACE FUNCTION within_life(p_what text, p_last bigint, p_end bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF p_last >= p_end THEN
        RAISE EXCEPTION 'this life of the metastore has no % left: begin another with `headrace migrate --restored`: last=% end=%',
                        p_what, p_last, p_end;
    END IF;
    RETURN p_last;
END $$;
