"""Results for people and programs: tables of text, and JSON."""
