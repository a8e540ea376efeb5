"""Physics of each kind of op, times a learned efficiency that is bounded."""
