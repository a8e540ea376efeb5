"""Many measurements in one go, resumable after an interruption."""
