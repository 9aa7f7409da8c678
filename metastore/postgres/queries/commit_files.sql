-- Locks, idempotence and cost: functions/commit_files.sql.
SELECT status, answer
  FROM commit_files(
    %(node_id)s::int, %(broker_epoch)s::bigint, %(producer_expiration_ms)s::bigint,
    %(file_id)s::uuid[], %(file_born_ms)s::bigint[], %(file_size)s::bigint[], %(file_bytes)s::bigint[],
    %(part_key)s::bigint[], %(part_leader_epoch)s::int[], %(part_count)s::int[],
    %(batch_file)s::int[], %(batch_part)s::int[], %(batch_prod)s::int[], %(batch_position)s::bigint[],
    %(batch_length)s::int[], %(batch_records)s::int[], %(batch_time)s::bigint[], %(batch_epoch)s::smallint[],
    %(batch_sequence)s::int[], %(batch_leader_epoch)s::int[], %(batch_count)s::int[],
    %(batch_before)s::bigint[], %(batch_run)s::int[], %(run_first)s::int[], %(run_last)s::int[], %(run_time)s::bigint[],
    %(prod_id)s::bigint[], %(prod_first)s::int[], %(prod_last)s::int[], %(prod_chained)s::boolean[], %(recent)s::int[]
  );
