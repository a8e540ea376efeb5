"""Changes to a step's code, made while it is traced: as a person would write them, in its place."""
