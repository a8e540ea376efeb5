"""The run store: past runs in SQLite or PostgreSQL, each of them once."""
