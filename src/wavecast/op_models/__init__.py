"""How long each kind of op takes, from physics and a bounded learned efficiency; in batches."""
