-- What this role lacks of an agent's rights (`headrace postgres setup`): the role, whether it may use a schema at all, and
-- each table or function with the rights that are missing.
-- Locks: none. Idempotent: reads only. Cost: the catalog; a row for each table and function of the schema.
WITH lacking AS (
    SELECT c.relname::text AS what, string_agg(p.privilege, ', ' ORDER BY p.place) AS rights
      FROM pg_class c
     CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) WITH ORDINALITY AS p (privilege, place)
     WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace
       AND NOT has_table_privilege(c.oid, p.privilege) AND (p.place = 1 OR c.relname <> 'schema_migrations')
     GROUP BY c.relname
    UNION ALL
    SELECT f.proname::text, 'EXECUTE' FROM pg_proc f
     WHERE f.pronamespace = current_schema()::regnamespace AND NOT has_function_privilege(f.oid, 'EXECUTE')
    UNION ALL
    SELECT s.relname::text, 'USAGE' FROM pg_class s
     WHERE s.relnamespace = current_schema()::regnamespace
       AND CASE WHEN s.relkind = 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE') END
)
SELECT current_user::text, current_schema() IS NOT NULL,
       EXISTS (SELECT FROM pg_class c
                WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
                  AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')),
       coalesce((SELECT array_agg(what || ' (' || rights || ')' ORDER BY what) FROM lacking), '{}')
