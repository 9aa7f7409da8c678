-- functions/waiting_files.sql
SELECT * FROM waiting_files(%(scan_from)s, %(limit)s::int)
