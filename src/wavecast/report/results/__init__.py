"""What each kind of result says: its fields, tables, sentences and drawings."""
