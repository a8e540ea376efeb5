"""What a task does: it measures a layer, a step or a run here, or predicts a step anywhere.

An answer is a table of plain values, so that it can be sent between machines and stored.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

from wavecast.campaigns import run_grids, suite_runs
from wavecast.campaigns.layer_times import LayerRow
from wavecast.errors import InvalidInput, WavecastError
from wavecast.hardware.devices import device
from wavecast.predictors.mlp import LayerStatus, PassTimes, layer
from wavecast.runs.run import Run
from wavecast.runs.suite_results import SuiteResult, SuiteStep
from wavecast.steps.request import predict
from wavecast.targets.sources import StepSource, target_source
from wavecast.targets.targets import resolve, strategy_of

# Tasks: the pieces of a campaign, each of which has one result.
#
# A task is known by what it asks for, so that a campaign which is started again, elsewhere or with
# a longer file, knows what is done.


ANYWHERE = ""
"""What a task has in place of a GPU if any machine will do: predictions."""
CPU = "cpu"
"""What a task has in place of a GPU if it tries a measurement out on a CPU."""
_MOST_TOGETHER = 64


@dataclass(frozen=True)
class CampaignTask:
    """Something to measure or to predict."""

    kind: str
    """predict, layer, suite or run: what `work` knows."""
    question: str
    """What it asks for, as JSON with sorted keys."""
    gpu: str = ANYWHERE
    """The id of the GPU that it must run on, `CPU`, or `ANYWHERE`."""
    shared: str = ""
    """Tasks with the same text here share work, such as a trace. Empty if it shares none."""

    @cached_property
    def id(self) -> str:
        """A hash of what it asks for."""
        text = "\n".join((self.kind, self.gpu, self.question))
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]

    @property
    def asked(self) -> dict[str, Any]:
        """What it asks for."""
        return dict(json.loads(self.question))

    @property
    def name(self) -> str:
        """What it asks for, in a line."""
        words = [str(value) for value in self.asked.values() if value not in ("", None, [], {})]
        return f"{self.kind} {', '.join(words)}"


def task(
    kind: str, asked: Mapping[str, Any], gpu: str = ANYWHERE, shared: str = ""
) -> CampaignTask:
    """A task that asks for something."""
    return CampaignTask(kind, json.dumps(asked, sort_keys=True), gpu, shared)


def together(tasks: Iterable[CampaignTask]) -> list[tuple[CampaignTask, ...]]:
    """Tasks in bundles, each of which runs as a whole: those that share work, up to 64 of them."""
    groups: dict[tuple[str, str], list[CampaignTask]] = {}
    for member in tasks:
        groups.setdefault((member.gpu, member.shared or member.id), []).append(member)
    return [part for group in groups.values() for part in _parts(group)]


def _parts(group: Sequence[CampaignTask]) -> list[tuple[CampaignTask, ...]]:
    starts = range(0, len(group), _MOST_TOGETHER)
    return [tuple(group[start : start + _MOST_TOGETHER]) for start in starts]


Answer = Mapping[str, Any]


@dataclass(frozen=True)
class TaskOutcome:
    """What became of one attempt at a task."""

    task: str
    """The id of the task."""
    node: str
    seconds: float
    answer: Answer | None = None
    error: str = ""
    """Why there is no answer."""


def perform_all(
    tasks: Sequence[CampaignTask], node: str = "", release: str = ""
) -> list[TaskOutcome]:
    """Perform tasks one after the other; one that fails does not stop the others.

    Args:
        node: the name of the machine; its own by default.
        release: the release of wavecast that asks. Another one here is refused.
    """
    name = node or platform.node()
    if release and release != this_release():
        refusal = f"{name} has wavecast {this_release()}, and {release} asks; install the same"
        return [TaskOutcome(task.id, name, 0.0, error=refusal) for task in tasks]
    return [_performed(task, name) for task in tasks]


def this_release() -> str:
    """The release of wavecast that is installed here."""
    try:
        return importlib.metadata.version("wavecast")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _performed(task: CampaignTask, node: str) -> TaskOutcome:
    began = time.monotonic()
    try:
        answer, error = _WORK[task.kind](task), ""
    except Exception as failure:  # whatever a task raises, the others go on
        text = str(failure) or repr(failure)
        answer, error = None, f"{type(failure).__name__}: {text.splitlines()[0][:500]}"
    return TaskOutcome(task.id, node, time.monotonic() - began, answer, error)


def _predict(task: CampaignTask) -> Answer:
    asked = task.asked
    source = _source(asked["target"], asked["batch"], asked["precision"])
    gpu = device(asked["gpu"])
    parallel = asked["parallel"]
    strategy = strategy_of(parallel, asked["target"]) if parallel else None
    try:
        step = predict(source.on(gpu), gpu, parallel=strategy, host=asked.get("host"))
        needed = step.memory
    except InvalidInput as error:  # it is the answer: another attempt would say the same
        return {"reason": str(error)}
    return {
        "seconds": step.seconds,
        "low_s": step.low_s,
        "high_s": step.high_s,
        "gpu_s": step.gpu_s,
        "samples_per_s": step.throughput,
        "unit": step.trace.unit,
        "needed_bytes": None if needed is None else needed.needed_bytes,
        "fits": step.fits,
        "unpredicted": step.unpredicted_share,
    }


@lru_cache(maxsize=4)
def _source(target: str, batch: int | None, precision: str | None) -> StepSource:
    """The traces of a step, kept for the tasks that share it."""
    return target_source(resolve(target, batch, precision))


def _time_layer(task: CampaignTask) -> Answer:
    from wavecast.frameworks.pytorch.measurement.layers import software, time_layer

    asked, where = task.asked, _measuring_device(task.gpu)
    timed = time_layer(layer(asked["layer"], asked["sizes"]), where)
    return {**asdict(timed), "software": software()}


def _measure_suite(task: CampaignTask) -> Answer:
    _measuring_device(task.gpu)
    asked = task.asked
    step = SuiteStep(asked["model"], asked["batch"], asked["precision"])
    measured = suite_runs.run_apart(
        suite_runs.measure_here, step, device(task.gpu), asked["limit_s"], None, asked["least"]
    )
    return asdict(measured)


def _measure_run(task: CampaignTask) -> Answer:
    from wavecast.frameworks.pytorch.measurement import whole_runs

    asked = task.asked
    startup_s, seconds = run_grids.measure_here(
        start_of(asked),
        _measuring_device(task.gpu),
        graph=asked["graph"],
        phase=asked["phase"],
        **asked["options"],
    )
    software = whole_runs.software(asked["graph"])
    return {"startup_s": startup_s, "seconds": list(seconds), "software": software}


def _measuring_device(gpu: str) -> str:
    """Where torch measures: "cuda" if this machine's GPU is the one that is asked for, or "cpu".

    Raises:
        WavecastError: this machine has another GPU, or none.
    """
    if gpu == CPU:
        return CPU
    from wavecast.frameworks.pytorch.measurement.iteration import require_gpu
    from wavecast.frameworks.pytorch.measurement.layers import gpu_id

    require_gpu()
    if gpu_id() != gpu:
        raise WavecastError(f"{platform.node()} has {gpu_id()}, and {gpu} is to be measured")
    return "cuda"


_WORK: Mapping[str, Callable[[CampaignTask], Answer]] = {
    "predict": _predict,
    "layer": _time_layer,
    "suite": _measure_suite,
    "run": _measure_run,
}


def start_of(asked: Mapping[str, Any]) -> run_grids.Start:
    """The start of a run that a task asks for."""
    lengths = tuple(asked["lengths"])
    return run_grids.Start(asked["model"], asked["batch"], lengths, asked["precision"])


def runs_of(asked: Mapping[str, Any], gpu: str, answer: Answer) -> tuple[Run, ...]:
    """The past runs that the answer to a grid's task has."""
    times = answer["startup_s"], answer["seconds"]
    where = {"gpu": gpu, "software": answer["software"], "phase": asked["phase"]}
    return tuple(run_grids.runs_of(start_of(asked), times, **where))


def layer_row(asked: Mapping[str, Any], gpu: str, answer: Answer) -> LayerRow:
    """A measured layer as a row of the files that `wavecast fit` reads."""
    status = LayerStatus(answer["status"])
    return LayerRow(
        index=asked["index"],
        layer=layer(asked["layer"], asked["sizes"]),
        gpu=gpu,
        time=PassTimes(answer["forward_s"], answer["backward_s"], status),
        seed=asked["seed"],
        software=answer["software"],
    )


def suite_row(answer: Answer) -> SuiteResult:
    """A measured step as a row of the files of `wavecast suite run`."""
    return SuiteResult(**answer)
