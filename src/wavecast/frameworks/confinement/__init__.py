"""What the operating system forbids a process that runs a user's script."""

from wavecast.frameworks.confinement.confining import Confinement, confine

__all__ = ["Confinement", "confine"]
