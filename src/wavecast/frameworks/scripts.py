"""Training scripts, run unchanged and without a GPU until their step repeats itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from wavecast.errors import InvalidInput, needing_extra
from wavecast.frameworks.script_passes import ScriptRequest
from wavecast.frameworks.script_process import run_in_process
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.traces.script import ScriptRun

PATIENCE_S = 120.0
"""How many seconds a script may take to a step."""
_OPTIONS = (
    *("capability", "steps", "until", "samples", "assume", "ranks", "changes", "lines", "loader"),
)


def run_script(
    script: str | PathLike[str],
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    gpu: Device | str | None = None,
    capability: tuple[int, int] | None = None,
    steps: int | None = None,
    until: str | None = None,
    samples: int | None = None,
    progress: Callable[[int], None] | None = None,
    assume: Mapping[str, Any] | None = None,
    ranks: int | None = None,
    patience: float | None = PATIENCE_S,
    offline: bool = False,
    changes: Sequence[str] = (),
    lines: bool = False,
    loader: bool = False,
    quiet: bool = False,
) -> ScriptRun:
    """The step that a training script repeats. The script runs as it is, and no GPU is needed.

    The script runs in a process of its own, as on a machine with a GPU, until two steps in a row
    did the same. It can write to a scratch folder only (`ScriptRun.confined`).

    Example:
        ```python
        trace = wavecast.run_script("train.py", ["--batch-size", "64"]).trace
        ```

    Args:
        script: the path of the script.
        arguments: what it finds in `sys.argv` after its own name.
        module: whether `script` is the name of a module, as in `python -m package.train`.
        gpu: the GPU for which to choose kernels; a recent data-centre GPU if None.
        capability: its compute capability, instead of `gpu`.
        steps: how many steps to run. None to stop as soon as two in a row are equal.
        until: `FILE:LINE`. A step ends when this line is reached, not at an optimizer step.
        samples: the samples of one step. None to count those that a data loader gives.
        progress: called from time to time with the number of ops traced so far.
        assume: what the step reads from the GPU, by line, as for `wavecast.trace`.
        ranks: how many ranks the script's own parallel code has, as for `wavecast.trace`.
        patience: how many seconds the script may take to a step; None for any number.
        offline: whether to refuse the network to the script.
        changes: changes to its code while it runs, by the names that `wavecast.advise` has.
        lines: whether the trace names the line of code of every op, as `--by line` needs.
        loader: whether to time its data loader apart, with its workers (`ScriptRun.loading`).
        quiet: whether to leave out what it prints, which else goes to the standard error.

    Raises:
        CaptureError: the script failed, ended with an error code, or comes to no step. Its
            `__cause__` is the script's own traceback as text, its `script_code` the exit code.
        InvalidInput: there is no such script or line, or the network cannot be refused.
    """
    _check(arguments, patience)
    given = assume and dict(assume)
    values = (capability, steps, until, samples, given, ranks, tuple(changes), lines, loader)
    options, program = zip(_OPTIONS, values, strict=True), (fspath(script), *map(str, arguments))
    how = (module, dict(options), _device(gpu), patience, offline, quiet)
    return run_in_process(ScriptRequest(program, *how), progress)


def _device(gpu: Device | str | None) -> Device | None:
    return device(gpu) if isinstance(gpu, str) else gpu


def _check(arguments: Sequence[str], patience: float | None) -> None:
    """Refuse wrong arguments, and to go on without a framework."""
    if isinstance(arguments, str):
        raise InvalidInput(f"arguments is the text {arguments!r}; give a list of texts")
    if patience is not None and not patience > 0:
        raise InvalidInput(f"patience is {patience}; it must be more than 0 s")
    if not any(map(importlib.util.find_spec, ("torch", "jax"))):
        with needing_extra("running a script"):
            raise ModuleNotFoundError(name="torch")
