-- Finding an offset by timestamp without walking the extents. Producers choose timestamps, so these
-- need not grow with offsets; docs/decisions/ says why blocks and not a running maximum.
-- A level 0 block covers 64 to 127 extents, a block of each next level 64 of the level below; level 3
-- is the last. A block's max_timestamp is too high once records below it are gone, never too low. Of the
-- level 0 blocks that end inside one merged extent only the last stays, and those that end a block above.

-- How many extents fill a partition's block: not the same for all, or the partitions of a topic that
-- is written evenly would close theirs in one commit.
CREATE OR REPLACE FUNCTION time_block_extents(p_key bigint) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 64 + (p_key & 63)::int;

-- Last offset that a partition's blocks of a level cover; -1 when there is none.
CREATE OR REPLACE FUNCTION time_block_end(p_key bigint, p_level int) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce((SELECT last_offset FROM time_blocks WHERE partition_key = p_key AND level = p_level
                  ORDER BY last_offset DESC LIMIT 1), -1);

-- Close the open blocks of partitions that are full.
-- Locks: the caller holds the shards' locks. Idempotent: no, each call closes a block.
-- Cost: one insert and one HOT update each; now and then 64 rows read and one inserted per level.
CREATE OR REPLACE FUNCTION close_time_blocks(p_keys bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO time_blocks (partition_key, level, last_offset, max_timestamp)
    SELECT key, 0, high_watermark - 1, open_max_timestamp
      FROM unnest(p_keys) AS key
     CROSS JOIN LATERAL (SELECT * FROM partition_heads WHERE partition_key = key
                          ORDER BY update_block DESC LIMIT 1) AS h;
    UPDATE partition_heads h SET open_extents = 0, open_max_timestamp = -1
      FROM unnest(p_keys) AS key
     CROSS JOIN LATERAL (SELECT ctid AS row FROM partition_heads WHERE partition_key = key
                          ORDER BY update_block DESC LIMIT 1) AS newest
     WHERE h.ctid = newest.row;
    FOR v_level IN 1..3 LOOP
        INSERT INTO time_blocks (partition_key, level, last_offset, max_timestamp)
        SELECT key, v_level, block.*
          FROM unnest(p_keys) AS key
         CROSS JOIN LATERAL (SELECT max(last_offset), max(max_timestamp)
                               FROM time_blocks
                              WHERE partition_key = key AND level = v_level - 1
                                AND last_offset > time_block_end(key, v_level)
                             HAVING count(*) >= 64) AS block;
        EXIT WHEN NOT FOUND;
    END LOOP;
END $$;

-- Let merged extents (arrays of one length) have few blocks: what ends inside one leads to it and nowhere else.
-- A block that goes leaves its range to the next one inside, which takes the highest timestamp of them all. One
-- that ends a block of level 1 stays, as look-ups come down on it; higher levels end where level 1 does.
-- Locks: none; the caller holds the partitions' rows, so that no other session changes or removes their blocks.
-- Commits only add, behind all that is here. Idempotent: yes. Cost: the blocks that end inside, and a probe each.
CREATE OR REPLACE FUNCTION thin_time_blocks(p_keys bigint[], p_bases bigint[], p_lasts bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    WITH inside AS MATERIALIZED (
        SELECT b.row, max(b.max_timestamp) OVER extent AS highest,
               b.last_offset = max(b.last_offset) OVER extent
               OR EXISTS (SELECT FROM time_blocks WHERE partition_key = e.key AND level = 1
                                                    AND last_offset = b.last_offset) AS stays
          FROM unnest(p_keys, p_bases, p_lasts) AS e (key, base, last)
         CROSS JOIN LATERAL (SELECT ctid AS row, last_offset, max_timestamp FROM time_blocks
                              WHERE partition_key = e.key AND level = 0 AND last_offset BETWEEN e.base AND e.last
                             OFFSET 0) AS b
        WINDOW extent AS (PARTITION BY e.key, e.last)
    ), gone AS (
        DELETE FROM time_blocks b USING inside i WHERE b.ctid = i.row AND NOT i.stays
    )
    UPDATE time_blocks b SET max_timestamp = i.highest
      FROM inside i WHERE b.ctid = i.row AND i.stays AND b.max_timestamp < i.highest;
END $$;

-- The first extent, from the one that holds p_from on, with a max_timestamp that reaches p_timestamp.
-- Locks: none. Idempotent: reads only.
-- Cost: up to 64 rows per level, one block's extents, and as much again for each block that promised more than it still holds.
CREATE OR REPLACE FUNCTION find_timestamp(p_key bigint, p_from bigint, p_timestamp bigint) RETURNS SETOF extents
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    c_end   CONSTANT bigint := 9223372036854775807;
    v_from  bigint := p_from;   -- the answer is not before it
    v_until bigint;             -- last offset of the block that it must be in; c_end after the last block
    v_block bigint;
BEGIN
    <<search>>
    LOOP
        v_until := c_end;
        FOR v_level IN REVERSE 3..0 LOOP
            SELECT last_offset INTO v_block
              FROM time_blocks
             WHERE partition_key = p_key AND level = v_level AND last_offset BETWEEN v_from AND v_until
               AND max_timestamp >= p_timestamp
             ORDER BY last_offset LIMIT 1;
            IF FOUND THEN
                SELECT greatest(v_from, max(last_offset) + 1) INTO v_from
                  FROM time_blocks
                 WHERE partition_key = p_key AND level = v_level AND last_offset < v_block;
                v_until := v_block;
            ELSIF v_until = c_end THEN
                v_from := greatest(v_from, time_block_end(p_key, v_level) + 1);
            ELSE
                v_from := v_until + 1;
                CONTINUE search;
            END IF;
        END LOOP;
        RETURN QUERY
            SELECT * FROM extents
             WHERE partition_key = p_key AND max_timestamp >= p_timestamp AND last_offset >= v_from
               AND last_offset <= (SELECT coalesce(min(last_offset), c_end) FROM extents  -- a merged one may reach over
                                    WHERE partition_key = p_key AND last_offset >= v_until)
             ORDER BY last_offset LIMIT 1;
        EXIT search WHEN FOUND OR v_until = c_end;
        v_from := v_until + 1;
    END LOOP;
END $$;

-- The first of the extents, from the one that holds p_from on, that hold the highest timestamp.
-- p_bound: no timestamp is higher. While its record is there, one look-up; else a binary search.
-- Locks: none. Idempotent: reads only. Cost: one to 64 times find_timestamp.
CREATE OR REPLACE FUNCTION find_max_timestamp(p_key bigint, p_from bigint, p_bound bigint) RETURNS SETOF extents
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_try   bigint := p_bound;
    v_low   bigint;             -- reached by v_best
    v_high  bigint := p_bound;
    v_found extents;
    v_best  extents;
BEGIN
    SELECT * INTO v_best FROM find_timestamp(p_key, p_from, -9223372036854775808);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_low := v_best.max_timestamp;
    WHILE v_low < v_high LOOP
        SELECT * INTO v_found FROM find_timestamp(p_key, p_from, v_try);
        IF FOUND THEN
            v_best := v_found;
            v_low := v_best.max_timestamp;
        ELSE
            v_high := v_try - 1;
        END IF;
        v_try := ceil((v_low::numeric + v_high) / 2);
    END LOOP;
    RETURN NEXT v_best;
END $$;
