"""The command line: it reads arguments, calls the library, and prints tables or JSON.

A module has the name of its main command.
"""

from wavecast.cli import (  # noqa: F401  (importing them registers their commands)
    check,
    choose,
    clusters,
    compare,
    devices,
    doctor,
    fit,
    layers,
    memory,
    parallel,
    predict,
    prices,
    profile,
    run,
    run_models,
    runs,
    schema,
    serve,
    suite,
    trace,
)
from wavecast.cli.app import app, main

__all__ = ["app", "main"]
