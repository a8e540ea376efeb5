"""The command line: arguments in, calls of the library, tables or JSON out."""

from wavecast.cli import learning, measuring, predicting, tracing  # noqa: F401  (they register)
from wavecast.cli.app import app, main

__all__ = ["app", "main"]
