"""Facts about GPUs and hosts, each number with its source."""
