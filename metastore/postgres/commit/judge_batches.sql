-- Go through a call's batches one by one, because not all of them can be accepted as they are, and make
-- the columns of what is left: the same columns that Staged of commit.py made for the case that nothing is refused.
-- Refusals are judged in this order: unknown partition, duplicate, leader epoch, partition count
-- (a duplicate is answered as one even when the topic has grown: P4), marked partition, producer epoch, sequence.
-- Locks: none; the caller holds the shards' locks. Idempotent: reads only.
-- Cost: set-based, but for producers that are not regular (fold_producers).
CREATE OR REPLACE FUNCTION judge_batches(
    p_ours boolean[], p_producer_expiration_ms bigint, p_part_key bigint[], p_part_epoch int[], p_part_head bigint[],
    p_batch_file int[], p_batch_part int[], p_batch_prod int[], p_batch_records int[], p_batch_time bigint[],
    p_batch_epoch smallint[], p_batch_sequence int[], p_batch_leader_epoch int[], p_batch_count int[],
    p_batch_alias int[],        -- empty: no batch came for an alias
    p_batch_run int[], p_prod_id bigint[], p_prod_regular boolean[],
    p_split int[],              -- by batch: judge_splits, judge_merges, judge_transactions; NULL: they let all pass
    OUT batch_before bigint[], OUT run_first int[], OUT run_last int[], OUT run_time bigint[],
    OUT prod_last int[],        -- NULL: nothing of it was accepted
    OUT recent int[], OUT answer bytea[]
)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_outcome  smallint[];      -- by batch: metastore.api.commit.BatchOutcome; -1 in a file that is not ours
    v_regular  boolean[];       -- by producer
    v_original bigint[];        -- by batch: a duplicate's base offset; -n: it repeats batch n of this call
    v_time     bigint[];        -- by batch: append time
    v_run      int[];           -- by batch
    v_state    int[] := p_batch_part;  -- by batch: the partition with its producer's state
BEGIN
    v_outcome := array(
        SELECT CASE WHEN NOT p_ours[file] THEN -1
                    WHEN p_part_epoch[part] IS NULL THEN batch_unknown_partition()
                    WHEN leader_epoch NOT IN (-1, p_part_epoch[part]) THEN batch_leader_epoch_mismatch()
                    WHEN count >= 0 AND count <> (SELECT undeleted_partition_count FROM topics
                                                    WHERE topic_number = p_part_key[part] >> 24)
                         THEN batch_partition_count_mismatch()
                    WHEN (SELECT state FROM partitions WHERE partition_key = p_part_key[part])
                         IN (state_marked(), state_linked())
                         THEN batch_partition_marked()
                    ELSE coalesce(p_split[i], batch_appended()) END
          FROM unnest(p_batch_file, p_batch_part, p_batch_leader_epoch, p_batch_count)
               WITH ORDINALITY AS b (file, part, leader_epoch, count, i)
         ORDER BY i);
    v_regular := array(
        SELECT p_prod_regular[prod] AND bool_and(v_outcome[i] = batch_appended())
          FROM unnest(p_batch_prod) WITH ORDINALITY AS b (prod, i)
         WHERE prod > 0 GROUP BY prod ORDER BY prod);
    IF p_batch_alias <> '{}' THEN
        v_state := array(
            SELECT coalesce(array_position(p_part_key, key_of_alias(p_part_key[part], alias)), part)
              FROM unnest(p_batch_part, p_batch_alias) WITH ORDINALITY AS b (part, alias, i) ORDER BY i);
    END IF;
    SELECT f.outcome, f.original, f.append_time INTO v_outcome, v_original, v_time
      FROM fold_producers(p_producer_expiration_ms, p_part_key, p_prod_id, v_regular, v_state, p_batch_prod,
                          p_batch_records, p_batch_epoch, p_batch_sequence, v_outcome, p_batch_time) AS f;

    -- A batch joins the run of the one before it if both were neighbours and that one is accepted.
    SELECT array_agg(before ORDER BY i), array_agg(run ORDER BY i)
      INTO batch_before, v_run
      FROM (SELECT i,
                   sum(accepted) OVER (PARTITION BY part ORDER BY i ROWS UNBOUNDED PRECEDING) - accepted AS before,
                   count(*) FILTER (WHERE v_outcome[i - 1] IS DISTINCT FROM batch_appended()
                                      OR run <> p_batch_run[i - 1])
                       OVER (ORDER BY i ROWS UNBOUNDED PRECEDING) AS run
              FROM unnest(p_batch_part, p_batch_records, p_batch_run) WITH ORDINALITY AS b (part, records, run, i)
             CROSS JOIN LATERAL (SELECT CASE WHEN v_outcome[i] = batch_appended() THEN records ELSE 0 END AS accepted)
                        AS a) AS placed;
    SELECT array_agg(first ORDER BY first), array_agg(last ORDER BY first), array_agg(time ORDER BY first)
      INTO run_first, run_last, run_time
      FROM (SELECT min(i) AS first, max(i) AS last, max(time) AS time
              FROM unnest(v_run, p_batch_time) WITH ORDINALITY AS b (run, time, i)
             WHERE v_outcome[i] = batch_appended() GROUP BY run) AS run;
    prod_last := array(
        SELECT max(i) FILTER (WHERE v_outcome[i] = batch_appended())
          FROM unnest(p_batch_prod) WITH ORDINALITY AS b (prod, i)
         WHERE prod > 0 GROUP BY prod ORDER BY prod);
    recent := array(
        SELECT i FROM unnest(p_batch_prod, p_batch_epoch) WITH ORDINALITY AS b (prod, epoch, i)
         WHERE prod > 0 AND v_outcome[i] = batch_appended() AND epoch = p_batch_epoch[prod_last[prod]]);

    answer := array(
        SELECT string_agg(packed, '' ORDER BY i)
          FROM (SELECT file, 0 AS i, '\x01'::bytea AS packed FROM generate_subscripts(p_ours, 1) AS file
                UNION ALL
                SELECT file, i, pack_answer(v_outcome[i],
                                            CASE WHEN v_outcome[i] = batch_appended() THEN head + batch_before[i]
                                                 WHEN v_original[i] < 0 THEN head + batch_before[-v_original[i]]
                                                 ELSE v_original[i] END,
                                            v_time[i])
                  FROM unnest(p_batch_file, p_batch_part) WITH ORDINALITY AS b (file, part, i)
                 CROSS JOIN LATERAL (SELECT p_part_head[part] AS head) AS h) AS batch
         GROUP BY file ORDER BY file);
END $$;
