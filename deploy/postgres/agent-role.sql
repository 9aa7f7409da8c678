-- A role with what agents and compactors need, and no more: it reads and writes rows, and cannot create, change or drop
-- a table or function. Run this once as the owner of the metastore's tables, after `headrace storage format` or
-- `headrace migrate`; tables of later migrations are covered by the default privileges. Then:
--
--   CREATE ROLE agents LOGIN PASSWORD '...' IN ROLE headrace_agent;
--
-- The owner keeps running `headrace migrate`; agents use metastore.url=postgresql://agents@...
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'headrace_agent') THEN
        CREATE ROLE headrace_agent NOLOGIN;
    END IF;
END $$;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO headrace_agent;
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO headrace_agent;
REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON schema_migrations FROM headrace_agent;
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO headrace_agent;
ALTER DEFAULT PRIVILEGES IN SCHEMA public
    GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLES TO headrace_agent;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT, UPDATE ON SEQUENCES TO headrace_agent;
