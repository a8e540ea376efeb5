"""Training scripts, run unchanged and without a GPU until their step repeats itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from wavecast.errors import InvalidInput, needing_extra
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.traces.script import ScriptRun


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
    changes: Sequence[str] = (),
) -> ScriptRun:
    """The step that a training script repeats. The script runs as it is, and no GPU is needed.

    It runs in this process as on a machine with a GPU, until two steps in a row did the same. What
    it writes goes to a scratch folder, which is removed at the end.

    Example:
        ```python
        run = wavecast.run_script("train.py", ["--batch-size", "64"])
        wavecast.predict(run.trace, "h100-sxm-80gb").seconds
        ```

    Args:
        script: the path of the script.
        arguments: what it finds in `sys.argv` after its own name.
        module: whether `script` is the name of a module, as in `python -m package.train`.
        gpu: the GPU for which to choose kernels; a recent data-centre GPU if None.
        capability: the compute capability of the GPU, instead of `gpu`.
        steps: how many steps to run. None to stop as soon as two in a row are equal.
        until: `FILE:LINE`. A step ends when this line is reached, not at an optimizer step.
        samples: the samples of one step. None to count those that a data loader gives.
        progress: called from time to time with the number of ops traced so far.
        assume: what the step reads from the GPU, by line of code, as in `{"train.py:41": 0.5}`.
        ranks: how many ranks the script's own parallel code has, as for `wavecast.trace`.
        changes: changes to its code while it runs, by the names that `wavecast.advise` has.

    Raises:
        CaptureError: the script failed (`__cause__` is its error), or has no step.
        InvalidInput: there is no such script or line.
    """
    if isinstance(arguments, str):
        raise InvalidInput(f"arguments is the text {arguments!r}; give a list of texts")
    with needing_extra("running a script"):
        from wavecast.frameworks.pytorch.scripts import Program, run
    return run(
        Program(fspath(script), tuple(map(str, arguments)), module),
        gpu=device(gpu) if isinstance(gpu, str) else gpu,
        capability=capability,
        steps=steps,
        until=until,
        samples=samples,
        progress=progress,
        assume=assume,
        ranks=ranks,
        changes=tuple(changes),
    )
