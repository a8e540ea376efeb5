"""The run store: past runs in SQLite or PostgreSQL, without duplicates."""
