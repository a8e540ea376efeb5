"""`wavecast suite run --gpus`: the suite measured on several GPUs, each with its own batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wavecast.cli.options.groups import option_group
from wavecast.cli.output.screen import counting_down, print_text
from wavecast.errors import InvalidInput, needing_extra

if TYPE_CHECKING:
    from wavecast.frameworks.pytorch.measurement.data_parallel import Machines
    from wavecast.runs.suite_results import SuiteResult, SuiteStep


@dataclass(frozen=True)
class SpreadOptions:
    """On how many GPUs a step runs, and where."""

    gpus: int | None = None
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None
    device: str = "cuda"


spread_options = option_group(
    "spread",
    SpreadOptions,
    {
        "gpus": "Measure on 1, 2, 4 ... up to so many GPUs, each with its own batch (torchrun).",
        "nodes": "Measure on so many machines; --gpus counts the GPUs of all of them.",
        "node_rank": "Which machine this is, from 0 on: start the command on each of them.",
        "rendezvous": "HOST:PORT of machine 0, where the machines meet.",
        "device": '"cuda", or "cpu" to try it out with processes of this CPU (gloo).',
    },
    "Several GPUs",
)


def refuse_alone(spread: SpreadOptions) -> None:
    """Refuse options of several GPUs without their number."""
    given = {"--nodes": spread.nodes != 1, "--node-rank": spread.node_rank != 0}
    given |= {"--rendezvous": spread.rendezvous is not None, "--device": spread.device != "cuda"}
    for option, is_given in given.items():
        if is_given and spread.gpus is None:
            raise InvalidInput(f"{option} is for several GPUs; say how many (--gpus)")


def run_spread(
    steps: Sequence[SuiteStep],
    out: Path,
    spread: SpreadOptions,
    seconds: float,
    iterations: int,
    failures: list[str],
) -> tuple[str, tuple[SuiteResult, ...]]:
    """Measure steps on several GPUs.

    Returns:
        The name of the machine's GPU, and all rows of the file; none on machines that only help.
    """
    from wavecast.campaigns import suite_runs
    from wavecast.runs.suite_results import gpu_name

    assert spread.gpus is not None
    gpu, machines = _checked(spread)
    every = suite_runs.spread_over(steps, spread.gpus, spread.nodes)
    measure = partial(
        suite_runs.measure_spread,
        gpu=gpu,
        machines=machines,
        device=spread.device,
        limit_s=seconds,
        iterations=iterations,
    )
    if spread.node_rank:
        for step in every:
            measure(step)
        print_text(f"machine {spread.node_rank} of {spread.nodes} is done; machine 0 has the rows")
        return gpu_name(gpu), ()

    def measure_first(step: SuiteStep) -> SuiteResult:
        result = measure(step)
        assert result is not None  # machine 0 has the times
        return result

    with counting_down("measuring the suite", len(every)) as update:
        results = suite_runs.run(
            every,
            out,
            measure_first,
            gpu=gpu,
            progress=lambda now: update(now.done, now.remaining_s),
            failed=lambda step, error: failures.append(
                f"{step.model}, batch {step.batch}, {step.precision}, {step.gpus} GPUs: {error}"
            ),
        )
    return gpu_name(gpu), results


def _checked(spread: SpreadOptions) -> tuple[str, Machines]:
    """The id of the GPU, and the machines; refuses what does not go together."""
    with needing_extra("measuring"):
        from wavecast.frameworks.pytorch.measurement.data_parallel import Machines
        from wavecast.frameworks.pytorch.measurement.iteration import require_gpu
        from wavecast.frameworks.pytorch.measurement.layers import gpu_count, gpu_id
    gpus, nodes = spread.gpus or 1, spread.nodes
    if spread.device not in ("cuda", "cpu"):
        raise InvalidInput(f'the device is "cuda" or "cpu", not "{spread.device}"')
    if gpus < 1 or nodes < 1:
        raise InvalidInput("--gpus and --nodes are at least 1")
    if not 0 <= spread.node_rank < nodes:
        raise InvalidInput(f"--node-rank is from 0 to {nodes - 1}, not {spread.node_rank}")
    meeting = spread.rendezvous or ""
    host, _, port = meeting.rpartition(":")
    if nodes > 1 and not (host and port.isdigit()):
        raise InvalidInput("several machines need --rendezvous HOST:PORT, the address of machine 0")
    if spread.device == "cuda":
        require_gpu()
        if gpus // nodes > (here := gpu_count()):
            raise InvalidInput(f"this machine has {here} GPUs, and {gpus // nodes} are needed")
    return gpu_id(spread.device), Machines(gpus, nodes, spread.node_rank, meeting)
