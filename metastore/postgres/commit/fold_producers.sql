-- Judge the batches of irregular producers one by one: duplicates, gaps, new epochs in mid-call,
-- never-seen producers that do not start at 0, and batches that are refused for other reasons.
-- Everything is decided in order, against the state as the batches before left it:
-- 10-14, 20-24, 15-19, 20-24 is accepted, out of order, accepted, accepted.
-- tests/model/producer_model.py says the same in plain Python.
--
-- outcome comes as appended, or with the refusal that a batch gets unless it is a duplicate (partition count,
-- leader epoch, marked partition, transaction), or with one that is final (-1, unknown partition). original and append_time are a duplicate's
-- first base offset and time, and of a batch that is out of order the sequence that is expected, and the end of the
-- metadata log (metastore.api.commit.BatchAnswer); original -n names batch n of this call: its offset is not known yet.
-- A producer that a partition does not know may start above 0 only if the partition may have forgotten it: both are
-- older than the expiration (docs/decisions/0012). An id that was never leased belongs to no producer of that age.
-- Or if it continues where it ended in a deleted topic of the same name (goes_on_after_deletion).
-- A batch that is in the log, but in the ring no more, is a duplicate without an offset (docs/decisions/0037).
-- Locks: none; the caller holds the shards' locks. Idempotent: reads only.
-- Cost: a loop over the batches of these producers, one index probe per producer.
CREATE OR REPLACE FUNCTION fold_producers(
    p_expiration_ms bigint, p_part_key bigint[], p_prod_id bigint[], p_prod_regular boolean[],
    p_batch_part int[], p_batch_prod int[], p_batch_records int[], p_batch_epoch smallint[], p_batch_sequence int[],
    INOUT outcome smallint[], INOUT append_time bigint[], OUT original bigint[]
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    b       record;
    v_prod  int := 0;
    v_epoch smallint;   -- NULL: never seen
    v_next  int;
    v_ring  bytea;
    v_whole boolean;    -- all sequences of this epoch from 0 to v_next are in the log, whichever life it began in
    v_wrap  boolean;    -- sequences went over their end in this epoch
    v_same  boolean;    -- the batch belongs to the epoch that the producer is in
    v_range bytea;      -- the batch's first and last sequence, as a ring entry opens
    v_place int;
BEGIN
    original := array_fill(0::bigint, ARRAY[cardinality(outcome)]);
    FOR b IN
        SELECT i, prod, records, epoch, sequence
          FROM unnest(p_batch_prod, p_batch_records, p_batch_epoch, p_batch_sequence)
               WITH ORDINALITY AS b (prod, records, epoch, sequence, i)
         WHERE prod > 0 AND NOT p_prod_regular[prod]
           AND outcome[i] IN (batch_appended(), batch_partition_count_mismatch(), batch_leader_epoch_mismatch(),
                              batch_partition_marked(), batch_sent_back(), batch_moved_key(), batch_producer_fenced(),
                              batch_invalid_txn_state(), batch_unknown_producer())
         ORDER BY prod, i
    LOOP
        IF b.prod <> v_prod THEN
            v_prod := b.prod;
            SELECT s.epoch, s.next_sequence, s.ring, s.contiguous_life BETWEEN 0 AND cluster_life(), s.wrapped
              INTO v_epoch, v_next, v_ring, v_whole, v_wrap
              FROM producer_state s
             WHERE s.partition_key = p_part_key[p_batch_part[b.i]] AND s.producer_id = p_prod_id[v_prod]
             ORDER BY s.update_block DESC LIMIT 1;
        END IF;
        v_range := int4send(b.sequence) || int4send(next_sequence(b.sequence, b.records - 1));
        v_same := b.epoch IS NOT DISTINCT FROM v_epoch;
        v_place := CASE WHEN v_same THEN ring_place(v_ring, v_range) ELSE -1 END;
        IF v_place >= 0 THEN
            outcome[b.i] := batch_duplicate();
            original[b.i] := ring_number(v_ring, v_place + 8);
            append_time[b.i] := ring_number(v_ring, v_place + 16);
        ELSIF v_same AND v_whole AND is_behind(b.sequence, b.records, v_next, v_wrap) THEN
            outcome[b.i] := batch_duplicate_sequence();
        ELSIF outcome[b.i] <> batch_appended() THEN
            CONTINUE;
        ELSIF b.epoch < v_epoch THEN
            outcome[b.i] := batch_producer_fenced();
        ELSIF (v_same AND b.sequence = v_next) OR (NOT v_same AND b.sequence = 0)
           OR (v_epoch IS NULL AND goes_on_after_deletion(p_part_key[p_batch_part[b.i]], p_prod_id[v_prod], b.epoch,
                                                          b.sequence, v_range, p_expiration_ms))
           OR (v_epoch IS NULL AND state_may_have_expired(p_part_key[p_batch_part[b.i]], p_prod_id[v_prod],
                                                                    p_expiration_ms)) THEN
            v_ring := v_range || int8send(-b.i) || int8send(append_time[b.i])
                      || CASE WHEN v_same THEN substring(v_ring FROM 1 FOR 96) ELSE '' END;
            v_whole := CASE WHEN v_same THEN v_whole ELSE b.sequence = 0 END;
            v_wrap := (v_same AND v_wrap) OR next_sequence(b.sequence, b.records) < b.sequence;
            v_epoch := b.epoch;
            v_next := next_sequence(b.sequence, b.records);
        ELSE
            outcome[b.i] := batch_out_of_order();
            original[b.i] := CASE WHEN v_same THEN v_next ELSE 0 END;
            append_time[b.i] := (SELECT next_offset FROM metadata_head);
        END IF;
    END LOOP;
END $$;

-- Whether a batch ends below the next sequence. Sequences that went over their end have no first one: then half of
-- them count as behind, the other half as ahead.
CREATE OR REPLACE FUNCTION is_behind(p_sequence int, p_records int, p_next int, p_wrapped boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_wrapped THEN ((p_next::bigint - p_sequence) & 2147483647) BETWEEN p_records AND 1073741824
            ELSE p_sequence::bigint + p_records <= p_next END;

-- Where in the ring an entry opens with these 8 bytes; -1 if none does.
CREATE OR REPLACE FUNCTION ring_place(p_ring bytea, p_range bytea) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE p_range
    WHEN substring(p_ring FROM 1 FOR 8) THEN 0
    WHEN substring(p_ring FROM 25 FOR 8) THEN 24
    WHEN substring(p_ring FROM 49 FOR 8) THEN 48
    WHEN substring(p_ring FROM 73 FOR 8) THEN 72
    WHEN substring(p_ring FROM 97 FOR 8) THEN 96
    ELSE -1 END;

-- The int8 that begins after `p_place` bytes.
CREATE OR REPLACE FUNCTION ring_number(p_ring bytea, p_place int) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ('x' || encode(substring(p_ring FROM p_place + 1 FOR 8), 'hex'))::bit(64)::bigint;

-- Whether the partition may have known this producer and forgotten it: both are there for longer than the expiration.
-- A producer is as old as its id's block, less the time in which an agent may hand the id out.
-- A partition with an index that was removed and is used again has forgotten all producers from before its return.
CREATE OR REPLACE FUNCTION state_may_have_expired(p_key bigint, p_producer_id bigint, p_expiration_ms bigint)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
DECLARE
    v_before bigint := wall_ms() - p_expiration_ms;
BEGIN
    RETURN coalesce((
        SELECT last_id >= p_producer_id AND to_ms(leased_at) + producer_id_block_ms() < v_before
          FROM producer_id_blocks
         WHERE first_id <= p_producer_id
         ORDER BY first_id DESC
         LIMIT 1
    ), false) AND coalesce((
        SELECT to_ms(created_at) < v_before FROM partitions WHERE partition_key = p_key
    ), false) OR EXISTS (
        SELECT FROM removed_partitions r
          JOIN partitions p USING (partition_key)
          JOIN producer_id_blocks b ON b.leased_at < p.created_at
         WHERE r.partition_key = p_key AND p_producer_id BETWEEN b.first_id AND b.last_id
    );
END $$;
