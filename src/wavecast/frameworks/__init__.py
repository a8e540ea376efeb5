"""Ways to get a Trace, one file or folder each, and callbacks that record runs."""
