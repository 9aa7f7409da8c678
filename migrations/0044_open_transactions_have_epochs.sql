-- No transaction is open under 32,767, the epoch that only fences a producer: the epoch after it is not a smallint, so
-- such a transaction could not be ended. Agents of the release before let clients open one. It has no data, since
-- batches under this epoch are refused, so its end needs no marker. State 5 is an abort.
DELETE FROM pending_offsets o USING transactions t
 WHERE o.producer_id = t.producer_id AND t.begun_at IS NOT NULL AND t.producer_epoch = 32767;
DELETE FROM transaction_partitions p USING transactions t
 WHERE p.producer_id = t.producer_id AND t.begun_at IS NOT NULL AND t.producer_epoch = 32767;
UPDATE transactions
   SET state = 5, begun_at = NULL, groups = '{}', previous_producer_id = -1, previous_epoch = -1, version = version + 1
 WHERE begun_at IS NOT NULL AND producer_epoch = 32767;
ALTER TABLE transactions ADD CONSTRAINT transactions_open_epoch CHECK (begun_at IS NULL OR producer_epoch < 32767);
