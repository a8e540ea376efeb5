"""A measured step and how to build it; and the files that keep traces of such steps."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import wavecast
from wavecast import Trace
from wavecast.hardware.devices import family

MakeStep = Callable[[], Callable[[], Any]]
Option = str | int | float | bool
Options = tuple[tuple[str, Option], ...]


@dataclass(frozen=True)
class Case:
    """A step that was measured on a GPU."""

    set: str
    """The source and protocol, such as "torchcnn train"."""
    gpu: str
    """The id of one of our devices."""
    model: str
    family: str
    precision: str
    batch: int
    layout: str
    measured_s: float
    make_step: MakeStep = field(compare=False, repr=False)
    options: Options = ()
    """Everything else that the step depends on. It is part of the trace's key, so a changed recipe
    must get a new value here."""
    software: str = ""
    """The software that it ran with. It is not part of the trace's key."""
    newest: bool = True
    """Whether no other case of the same GPU, model and precision ran with newer software."""
    gpu_s: float | None = None
    """The GPU-busy time. None if it was not measured."""
    old: bool = False
    """Whether it is known to have run with torch before 1.10."""
    era: str = ""
    """The era of its libraries (`era_of`); empty for those of today, or where it is not known."""
    rebuilt: bool = True
    """Whether the rebuilt step does everything that was timed, as far as is known. Constants are
    fitted only on such steps."""

    @property
    def name(self) -> str:
        """The case in one line."""
        shape = " ".join(str(value) for _, value in self.options if value not in (False, ""))
        return f"{self.model} {self.precision} {self.layout} b{self.batch} {shape}".rstrip()

    @property
    def throughput(self) -> float:
        """Measured samples per second."""
        return self.batch / self.measured_s


def era_of(torch: tuple[int, ...]) -> str:
    """The era of a release of torch, by how well its libraries used tensor cores."""
    return "before 1.13" if torch < (1, 13) else "1.13" if torch < (2,) else ""


def bert_options(sequence: int, *, old: bool, looped: bool = False) -> Options:
    """The options of NVIDIA's BERT.

    Args:
        sequence: the number of tokens.
        old: whether it ran with torch before 1.10.
        looped: whether Adam updates the weights one by one, as SQuAD's script does in float32.
    """
    options: Options = (("sequence", sequence), ("gelu", "biased apart"))
    options = (*options, ("torch", "before 1.10")) if old else options
    return (*options, ("optimizer", "looped Adam")) if looped else options


class Traces:
    """Traces in a folder; missing ones are made.

    GPUs of one family share a trace. All GPUs share it unless it contains attention, for which
    families use different kernels.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def path(self, case: Case) -> Path | None:
        """The file of a case's trace. None if the folder lacks it."""
        return next((path for path in self._paths(case) if path.exists()), None)

    def find(self, case: Case) -> Trace | None:
        """The trace of a case. None if the folder lacks it."""
        path = self.path(case)
        return None if path is None else wavecast.load_trace(path)

    def failure(self, case: Case) -> str | None:
        """The reason why tracing the case failed before. None if it did not fail."""
        path = self._failure(case)
        return path.read_text(encoding="utf-8") if path.exists() else None

    def make(self, case: Case) -> Trace | None:
        """Trace a case and write the trace, or the reason if tracing fails.

        A library that is missing here is no such reason: the folder outlives this environment.
        """
        try:
            trace = wavecast.trace(case.make_step, gpu=case.gpu, samples=case.batch)
        except Exception as error:  # third-party models may raise anything
            if isinstance(error.__cause__, (ImportError, SystemExit)):
                raise
            self._failure(case).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            return None
        exact, shared = self._paths(case)
        differs = any("scaled_dot_product" in call.op.name for call in trace)
        trace.save(exact if differs else shared)
        return trace

    def make_missing(self, cases: Sequence[Case]) -> None:
        """Trace the cases that the folder lacks; those that failed before are not tried again."""
        missing = [c for c in cases if self.path(c) is None and self.failure(c) is None]
        for number, case in enumerate(missing, start=1):
            if self.path(case) is None:  # an earlier case may have had the same step
                where = f"{number}/{len(missing)} {case.set}: {case.name}"
                print(where, file=sys.stderr, flush=True)
                self.make(case)

    @staticmethod
    def key(case: Case) -> str:
        """A hash that is equal for all cases with the same step."""
        facts = (case.set, case.model, case.precision, case.batch, case.layout, case.options)
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]

    def _paths(self, case: Case) -> tuple[Path, Path]:
        capability = family(wavecast.device(case.gpu))
        exact = f"{self.key(case)}-{capability[0]}{capability[1]}.json.gz"
        return self.folder / exact, self.folder / f"{self.key(case)}-any.json.gz"

    def _failure(self, case: Case) -> Path:
        return self.folder / f"{self.key(case)}.failed.txt"
