-- functions/mark_unreadable.sql
SELECT mark_unreadable(%(job_id)s, %(epoch)s, %(file_ids)s::uuid[])
