"""The store: SQLite or PostgreSQL, its rows, one transaction's work. The only room that imports a database driver."""
