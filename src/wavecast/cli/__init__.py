"""The command line: arguments in, calls of the library, tables or JSON out."""

from wavecast.cli import (  # noqa: F401  (they register)
    learning,
    measuring,
    memory,
    predicting,
    profiling,
    regressing,
    runs,
    suites,
    tracing,
)
from wavecast.cli.app import app, main

__all__ = ["app", "main"]
