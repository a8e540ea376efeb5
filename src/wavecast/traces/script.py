"""What a training script did: the step that repeats, and what ran only once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from wavecast.results import Shown
from wavecast.traces.step import Trace


@dataclass(frozen=True)
class ScriptPart(Shown):
    """A part of a script's run that is not in the repeated step: set-up or evaluation."""

    name: str
    calls: int
    """The number of op calls on the GPU."""
    flops: float
    """Their FLOPs. A multiply-add counts two."""


@dataclass(frozen=True)
class LoaderTime(Shown):
    """How fast a script's data loader is, timed on this machine with its workers at once."""

    seconds: float
    """A batch is ready as often as this."""
    cpu_s: float
    """The CPU time of one batch."""
    batches: int
    """How many were timed."""
    workers: int
    """How many worker processes loaded; 0 for the training process itself."""
    cores: int
    """The cores of this machine."""

    def on_cores(self, cores: int) -> float:
        """How often a batch is ready on a machine with so many cores of the same speed."""
        return self.cpu_s / min(max(self.workers, 1), cores)


@dataclass(frozen=True)
class ScriptLength(Shown):
    """How long a script trains, as far as its own code has a name for it."""

    source: str
    """The name that the number has in the code, and where."""
    epochs: float | None = None
    """The epochs. None if the code names its steps, or nothing."""
    batches: int | None = None
    """The batches of an epoch, as the data loader counts them."""
    steps: float | None = None
    """The optimizer steps in all. None if it is not known."""


@dataclass(frozen=True)
class Loading(Shown):
    """How long a script's data loader took for its batches, on this machine."""

    seconds: float
    """The median time of one batch, loaded in one process."""
    batches: int
    """How many batches a step takes."""
    workers: int = 0
    """How many worker processes the script asks for. Here none was started."""
    timed: LoaderTime | None = None
    """The loader, timed apart with its workers, if that was asked for and worked."""

    @property
    def step_s(self) -> float:
        """The time in which the workers load the batches of one step, each on a core of its own."""
        if self.timed is not None:
            return self.timed.seconds * self.batches
        return self.seconds * self.batches / max(self.workers, 1)

    def on_cores(self, cores: int) -> Loading:
        """The same on a machine with so many cores; as it is if the loader was not timed apart."""
        if self.timed is None:
            return self
        seconds = self.timed.on_cores(cores)
        return replace(self, timed=replace(self.timed, seconds=seconds, cores=cores))

    def iteration_s(self, step_s: float, host_s: float, *, waits: bool) -> float:
        """The time from one step to the next, with the loading of its batches.

        Workers load beside the step. Without any, the training process loads, and then issues ops;
        if the step `waits` for the GPU, the GPU has nothing to do meanwhile.
        """
        if self.workers:
            return max(step_s, self.step_s)
        return max(step_s, (step_s if waits else host_s) + self.step_s)


@dataclass(frozen=True)
class UnevenSteps(Shown):
    """Steps of a cycle that are alike, but differ from the step that repeats."""

    begin: int
    """The first call of one of them in the trace of the cycle."""
    end: int
    """The call after its last one."""
    times: int
    """How many of them a cycle has."""


@dataclass(frozen=True)
class OwnTime(Shown):
    """How long a script's own Python took between the ops of a step, on this machine.

    It loads data without a data loader, computes on the host, writes logs, or waits.
    """

    seconds: float
    """The time in one step."""
    line: str
    """The line of the user's code that took most of it."""


@dataclass(frozen=True, repr=False)
class ScriptRun(Shown):
    """A training script that was run until its step repeated itself.

    ```python
    run = wavecast.run_script("train.py", ["--batch-size", "64"])
    wavecast.predict(run.trace, "l4").seconds
    print(run.summary)  # step 3 of the loop at train.py:41; steps 2 and 3 are equal
    ```
    """

    script: str
    """The script, as it was named."""
    trace: Trace
    """The step that repeats, from the end of one optimizer step to the end of the next."""
    line: str
    """The line of the user's code that ends the step: `train.py:41`."""
    step: int
    """Which step of the loop the trace is of. The first is 1."""
    steps: int
    """How many steps ran."""
    equal: tuple[int, ...]
    """The steps whose ops are those of the trace, the traced one included."""
    choice: str
    """How the step was chosen, in words: "steps 2 and 3 are equal"."""
    once: tuple[ScriptPart, ...] = ()
    """What ran outside of the repeated step."""
    holds: str = ""
    """What one step has, in words: "4 micro-batches, 64 samples, bfloat16, compiled"."""
    left_out: tuple[str, ...] = ()
    """What other steps do, or the script does besides, and the trace does not have."""
    loading: Loading | None = None
    """How long the batches of a step took to load. None if no data loader gave any."""
    own_time: OwnTime | None = None
    """How long the script's own Python took between the ops of a step. None if not long."""
    length: ScriptLength | None = None
    """How long the script trains. None if its code has no usual name for it."""
    largest: Trace | None = field(default=None, repr=False)
    """The step that ran and needs most memory. None if it is the step of the trace."""
    cycle: Trace | None = field(default=None, repr=False)
    """All steps after which the steps come again, where some do more than others, as with an
    evaluation every few steps. None if all are equal, or if this is not known."""
    cycle_steps: int = 1
    """How many steps these are."""
    uneven: tuple[UnevenSteps, ...] = ()
    """Those of them that are not as the step that repeats."""
    confined: bool = True
    """Whether the kernel kept the script from writing anything outside of its scratch folder. If
    not, as on macOS, only Python's functions on files were redirected."""

    @property
    def summary(self) -> str:
        """Which step the trace is of, and how it was chosen, in one line."""
        return f"step {self.step} of the loop at {self.line}; {self.choice}"
