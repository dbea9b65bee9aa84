-- name: has_schema [sqlite]
-- Whether there is a schema.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'tidemill_schema';

-- name: has_schema [postgresql]
-- Whether there is a schema.
SELECT 1 FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = 'tidemill_schema';

-- name: schema_version
-- Its version.
SELECT version FROM tidemill_schema;

-- name: set_schema_version
-- A migration was applied.
UPDATE tidemill_schema SET version = :version;

-- name: database_bytes [sqlite]
-- How large the database is.
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size();

-- name: database_bytes [postgresql]
-- How large the database is.
SELECT pg_database_size(current_database());
