-- What an inline file's id says (storage/file_id.py): that its bytes are in the metastore, and in which slot.
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION is_inline(p_file_id uuid) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN get_byte(uuid_send(p_file_id), 6) = 143;

CREATE OR REPLACE FUNCTION inline_slot(p_file_id uuid) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN get_byte(uuid_send(p_file_id), 7)::smallint;
