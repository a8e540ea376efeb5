"""From op times to the time of a training step."""
