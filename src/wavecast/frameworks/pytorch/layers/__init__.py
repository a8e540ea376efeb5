"""Single layers: what they compute, how networks name them, networks fitted to their times."""
