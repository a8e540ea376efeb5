"""The command line: it reads arguments, calls the library, and prints tables or JSON.

`commands.py` says which commands there are. A module has the name of its main command: commands
about a step in `steps/`, about past runs in `runs/`, about many jobs in `plans/`, about hardware
and this machine in `facts/`. `options/` and `output/` are shared.
"""

from wavecast.cli.app import app, main

__all__ = ["app", "main"]
