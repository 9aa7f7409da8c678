-- What the metastore holds, for people (demo, audits): never on a request's path.
-- Locks: none. Idempotent: reads only. Cost: scans segment_files and the extents' primary key.
SELECT (SELECT count(*) FROM segment_files WHERE state = file_live())                        AS files,
       (SELECT coalesce(sum(size), 0)::bigint FROM segment_files WHERE state = file_live())       AS bytes,
       (SELECT coalesce(sum(live_bytes), 0)::bigint FROM segment_files WHERE state = file_live()) AS live_bytes,
       (SELECT count(*) FROM extents)                                              AS extents;
