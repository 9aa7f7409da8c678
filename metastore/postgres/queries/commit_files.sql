-- Locks, idempotence and cost: functions/commit_files.sql.
SELECT status, answer
  FROM commit_files(
    %(node_id)s::int, %(broker_epoch)s::bigint, %(producer_expiration_ms)s::bigint,
    %(file_ids)s::uuid[], %(file_births)s::bigint[], %(file_sizes)s::bigint[], %(file_bytes)s::bigint[],
    %(keys)s::bigint[],
    %(prod_part)s::int[], %(prod_id)s::bigint[], %(prod_epoch)s::smallint[], %(prod_sequence)s::int[],
    %(prod_chained)s::boolean[],
    %(batch_file)s::int[], %(batch_part)s::int[], %(batch_prod)s::int[], %(batch_joined)s::boolean[],
    %(batch_position)s::bigint[], %(batch_length)s::int[], %(batch_records)s::int[], %(batch_time)s::bigint[],
    %(batch_epoch)s::smallint[], %(batch_sequence)s::int[], %(batch_leader_epoch)s::int[], %(batch_count)s::int[]
  );
