-- The partition of the two metadata topics that has a partition's records: Kafka's RemoteLogMetadataTopicPartitioner,
-- toPositive(murmur2(hash as 4 bytes)) % 50, where hash is Java's Objects.hash(low 64 bits, high 64 bits, partition).
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION metadata_partition(p_topic_id uuid, p_partition_index int) RETURNS smallint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    v_mask  bigint := 4294967295;
    v_bytes bytea := uuid_send(p_topic_id);
    v_words bigint[];  -- four words of 32 bits, the highest first
    v_hash  bigint := 1;
    v_k     bigint;
    v_h     bigint;
BEGIN
    SELECT array_agg((get_byte(v_bytes, 4 * i)::bigint << 24) + (get_byte(v_bytes, 4 * i + 1) << 16)
                     + (get_byte(v_bytes, 4 * i + 2) << 8) + get_byte(v_bytes, 4 * i + 3) ORDER BY i)
      INTO v_words FROM generate_series(0, 3) AS i;
    -- Long.hashCode: the two halves, exclusive or
    v_hash := (31 * v_hash + (v_words[3] # v_words[4])) & v_mask;
    v_hash := (31 * v_hash + (v_words[1] # v_words[2])) & v_mask;
    v_hash := (31 * v_hash + p_partition_index) & v_mask;
    -- murmur2 reads its word with the lowest byte first
    v_k := ((v_hash & 255) << 24) + ((v_hash >> 8 & 255) << 16) + ((v_hash >> 16 & 255) << 8) + (v_hash >> 24);
    v_k := multiply32(v_k, 1540483477);
    v_k := multiply32(v_k # (v_k >> 24), 1540483477);
    v_h := multiply32(2538058380 # 4, 1540483477) # v_k;
    v_h := multiply32(v_h # (v_h >> 13), 1540483477);
    v_h := v_h # (v_h >> 15);
    RETURN ((v_h & 2147483647) % 50)::smallint;
END $$;

-- The low 32 bits of a product of two unsigned 32-bit numbers.
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION multiply32(p_a bigint, p_b bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ((((p_a >> 16) * p_b & 65535) << 16) + (p_a & 65535) * p_b) & 4294967295;
