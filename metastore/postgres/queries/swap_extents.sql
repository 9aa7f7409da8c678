-- functions/swap_extents.sql
SELECT swap_extents(
    %(job_id)s, %(epoch)s, %(file_id)s, %(born_ms)s, %(level)s::smallint, %(size)s, %(body_bytes)s,
    %(keys)s::bigint[], %(bases)s::bigint[], %(lasts)s::bigint[], %(positions)s::bigint[], %(lengths)s::bigint[],
    %(leader_epochs)s::int[], %(times)s::bigint[],
    %(input_swaps)s::int[], %(input_lasts)s::bigint[], %(input_files)s::uuid[])
