-- Which of the eight slots a row of commit_log or commit_answers belongs to, and how long ticks are.
-- rotate_log_slots() empties the slots; docs/decisions/0003 says why there are slots.
-- Locks: none. Idempotent: reads only. Cost: none worth naming.

-- A row is kept for four ticks at least: feed rows two minutes, answers an hour after the file's birth.
CREATE OR REPLACE FUNCTION log_tick_ms(p_log text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_log WHEN 'commit_log' THEN 30000 WHEN 'commit_answers' THEN 900000 END;

CREATE OR REPLACE FUNCTION log_tick(p_log text) RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN wall_ms() / log_tick_ms(p_log);

CREATE OR REPLACE FUNCTION feed_slot() RETURNS smallint
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (log_tick('commit_log') % 8)::smallint;

-- The slot of an answer follows from the creation time in the file id, so that it is found by the id alone.
CREATE OR REPLACE FUNCTION answer_slot(p_born_ms bigint) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (p_born_ms / log_tick_ms('commit_answers') % 8)::smallint;
