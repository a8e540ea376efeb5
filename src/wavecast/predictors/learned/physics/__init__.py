"""How long each kind of op takes by physics, in columns."""
