"""The ways to get a Trace of a training step: traced, measured, or from a profiler file."""
