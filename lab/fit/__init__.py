"""How each shipped fit is made."""
