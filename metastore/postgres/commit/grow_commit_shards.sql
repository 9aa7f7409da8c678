-- Give the cluster more commit shards, unless the metadata log has moved on: then false, and nothing happened. p_shards
-- is the count before, doubled once or several times: partitions that shared no shard share none afterwards, and readers
-- know the counts in between. p_record is the FeatureLevelRecord that says the new count (metastore/log/image.py).
-- A partition's feed continues in the shard of the new count. No writing call is under way while this runs, so each one
-- has the locks and the feed of one count; and each feed row of before is older than each of after: readers take the
-- old shards first (agent/fetch/index/index.py). New shards begin at row 1. docs/decisions/0077.
-- Locks: advisory (life_lock(), 0), exclusive, for which it waits half a second at most: calls that begin meanwhile wait
-- behind it; then metadata_head. Idempotent: no; a repeated call finds the log moved. Cost: one update per partition that
-- changes its shard, some 3 us each.
CREATE OR REPLACE FUNCTION grow_commit_shards(
    p_life int, p_expected_head bigint, p_shards smallint, p_feature text, p_record bytea
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '500ms'
AS $$
DECLARE
    v_shards smallint;
BEGIN
    PERFORM pg_advisory_xact_lock(life_lock(), 0);
    PERFORM assert_life(p_life);
    v_shards := (SELECT commit_shards FROM cluster);
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    IF p_shards NOT IN (SELECT v_shards::int << doublings FROM generate_series(1, 10) AS doublings) THEN
        RAISE EXCEPTION 'commit shards grow by doublings: shards=% wanted=%', v_shards, p_shards;
    END IF;
    INSERT INTO commit_shards (shard, seq) SELECT number, 0 FROM generate_series(v_shards, p_shards - 1) AS number;
    UPDATE cluster SET commit_shards = p_shards;
    UPDATE partitions SET shard = commit_shard(partition_key, p_shards)
     WHERE shard <> commit_shard(partition_key, p_shards);
    PERFORM append_metadata(p_expected_head, ARRAY[p_record]);
    INSERT INTO features (name, min_level, max_level) VALUES (p_feature, 1, p_shards)
    ON CONFLICT (name) DO UPDATE SET max_level = excluded.max_level;
    RETURN true;
END $$;
