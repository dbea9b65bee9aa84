-- name: has_schema [sqlite]
-- Whether there is a schema.
SELECT 1 AS found FROM sqlite_master WHERE type = 'table' AND name = 'tidemill_schema';

-- name: has_schema [postgresql]
-- Whether there is a schema.
SELECT 1 AS found FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = 'tidemill_schema';

-- name: schema_version
-- Its version.
SELECT version FROM tidemill_schema;

-- name: set_schema_version
-- A migration was applied.
UPDATE tidemill_schema SET version = :version;

-- name: take_over
-- A server of a pair becomes the active one; the number of the take-over.
INSERT INTO meta (name, value) VALUES ('server_term', 1) ON CONFLICT (name) DO UPDATE SET value = meta.value + 1 RETURNING value;

-- name: hold_term [sqlite]
-- The number of the last take-over: SQLite serves one process, which holds the directory's lock.
SELECT value FROM meta WHERE name = 'server_term';

-- name: hold_term [postgresql]
-- The number of the last take-over, which cannot change before this transaction has ended.
SELECT value FROM meta WHERE name = 'server_term' FOR SHARE;

-- name: table_names [sqlite]
-- Every table.
SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!';

-- name: table_names [postgresql]
-- Every table.
SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() AND table_type = 'BASE TABLE';

-- name: database_bytes [sqlite]
-- How large the database is.
SELECT page_count * page_size AS bytes FROM pragma_page_count(), pragma_page_size();

-- name: database_bytes [postgresql]
-- How large the database is.
SELECT pg_database_size(current_database()) AS bytes;
