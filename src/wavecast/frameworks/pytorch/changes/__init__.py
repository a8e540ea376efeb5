"""Changes to a step's code, made while it is traced: as a person would write them, in its place."""

from wavecast.frameworks.pytorch.changes.changed_code import CODE_CHANGES, changed, changing

__all__ = ["CODE_CHANGES", "changed", "changing"]
