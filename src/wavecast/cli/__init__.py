"""The command line: it reads arguments, calls the library, and prints tables or JSON.

A module has the name of its main command: commands about a step in `steps/`, about past runs in
`runs/`, about many jobs in `plans/`, about hardware and this machine in `facts/`. `options/` and
`output/` are shared.
"""

from wavecast.cli.facts import devices, prices, serve, suite  # noqa: F401
from wavecast.cli.plans import plan  # noqa: F401
from wavecast.cli.runs import campaign, fit, layers, run_grid, run_models, runs  # noqa: F401
from wavecast.cli.steps import (  # noqa: F401
    advise,
    check,
    choose,
    compare,
    evaluate,
    memory,
    parallel,
    predict,
    profile,
    run,
    trace,
)

from wavecast.cli.app import app, main  # isort: skip

__all__ = ["app", "main"]
