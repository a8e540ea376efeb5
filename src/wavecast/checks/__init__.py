"""Whether named steps still take the time and memory that a committed baseline says."""
