"""The models of the suite."""
