"""SQLite or PostgreSQL, the rows, and what one transaction changes. The only room that imports a database driver."""
