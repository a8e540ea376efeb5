"""Steps checked against a committed baseline."""
