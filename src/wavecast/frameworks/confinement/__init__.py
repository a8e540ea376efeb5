"""What the operating system forbids a process that runs a user's script."""

from wavecast.frameworks.confinement.confining import (
    Confinement,
    confine,
    end_children,
    restrict_files,
    run_guarded,
)

__all__ = ["Confinement", "confine", "end_children", "restrict_files", "run_guarded"]
