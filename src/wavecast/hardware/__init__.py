"""Facts about GPUs and hosts. Every number has a source."""
