"""Commands that score wavecast against measurements, one command for each question."""
