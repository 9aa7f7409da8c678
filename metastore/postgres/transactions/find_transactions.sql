-- What is stored of the transactional ids: the asked ones, or all when ids is NULL.
-- Locks: none; one snapshot. Idempotent: reads only. Cost: a few index probes per id.
SELECT t.transactional_id, t.producer_id, t.producer_epoch, t.state, t.timeout_ms, t.previous_producer_id,
       t.previous_epoch, t.groups, t.version, coalesce(to_ms(t.begun_at), -1), to_ms(t.changed_at),
       array(SELECT partition_key FROM transaction_partitions p WHERE p.producer_id = t.producer_id ORDER BY 1)
  FROM transactions t
 WHERE %(ids)s::text[] IS NULL OR t.transactional_id = ANY (%(ids)s::text[])
 ORDER BY t.transactional_id
