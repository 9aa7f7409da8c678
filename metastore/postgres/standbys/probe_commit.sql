-- Commit a message in the WAL that changes nothing, as every write has to be committed: flushed, and confirmed by the
-- synchronous standbys. It needs no table, so no lock. Output: whether a write to a table would be refused, as read-only.
-- Locks: none. Idempotent: the message has no reader. Cost: one WAL record and its flush.
SELECT pg_logical_emit_message(true, 'headrace', ''::text)::text,
       current_setting('transaction_read_only') = 'on'
