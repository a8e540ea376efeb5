"""Results for people (tables and pages) and for programs (JSON)."""
