"""The formulas behind `wavecast.ops`, one file per family of ops."""
