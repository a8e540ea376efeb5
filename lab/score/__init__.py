"""How good and how fast wavecast is: one command each."""
