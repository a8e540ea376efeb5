"""One published measurement and the step that was measured; traces of such steps, kept in files."""

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
from wavecast.hardware.families import family

MakeStep = Callable[[], Callable[[], Any]]
Option = str | int | float | bool
Options = tuple[tuple[str, Option], ...]


@dataclass(frozen=True)
class Case:
    """A step that somebody measured on a GPU."""

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
    """Everything else that the step depends on; a changed recipe gets another number here."""
    software: str = ""
    """The software that it ran with; it does not change the trace."""
    newest: bool = True
    """No other case of the same GPU, model and precision ran with newer software."""
    gpu_s: float | None = None
    """How long the GPU was busy, where that was measured."""
    old: bool = False
    """Known to have run with torch before 1.10, whose libraries used tensor cores less well."""
    rebuilt: bool = True
    """Whether the step does all that was timed, as far as is known: constants are fitted on such
    steps only."""

    @property
    def name(self) -> str:
        """The case in one line."""
        shape = " ".join(str(value) for _, value in self.options if value not in (False, ""))
        return f"{self.model} {self.precision} {self.layout} b{self.batch} {shape}".rstrip()

    @property
    def throughput(self) -> float:
        """Measured samples per second."""
        return self.batch / self.measured_s


def bert_options(sequence: int, *, old: bool, looped: bool = False) -> Options:
    """The options of NVIDIA's BERT.

    Args:
        sequence: the number of tokens.
        old: whether it ran with torch before 1.10.
        looped: whether Adam updates one weight after the other, as SQuAD's script does in float32.
    """
    found: Options = (("sequence", sequence), ("gelu", "biased apart"))
    found = (*found, ("torch", "before 1.10")) if old else found
    return (*found, ("optimizer", "looped Adam")) if looped else found


class Traces:
    """Traces in a folder, made when missing.

    GPUs of one family share a trace, and all GPUs share it if no op in it is one that families
    have different kernels for.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def path(self, case: Case) -> Path | None:
        """Where the trace of a case lies, if it was made."""
        return next((path for path in self._paths(case) if path.exists()), None)

    def find(self, case: Case) -> Trace | None:
        """The trace of a case, if the folder has it."""
        path = self.path(case)
        return None if path is None else wavecast.load_trace(path)

    def failure(self, case: Case) -> str | None:
        """Why it could not be traced before."""
        path = self._failure(case)
        return path.read_text(encoding="utf-8") if path.exists() else None

    def make(self, case: Case) -> Trace | None:
        """Trace a case and keep the result; of a failure, keep the reason."""
        try:
            trace = wavecast.trace(case.make_step, gpu=case.gpu, samples=case.batch)
        except Exception as error:  # other people's models fail in every way there is
            self._failure(case).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            return None
        exact, shared = self._paths(case)
        differs = any("scaled_dot_product" in call.op.name for call in trace)
        trace.save(exact if differs else shared)
        return trace

    def make_missing(self, cases: Sequence[Case]) -> None:
        """Trace what the folder does not have; what failed before is not tried again."""
        missing = [c for c in cases if self.path(c) is None and self.failure(c) is None]
        for number, case in enumerate(missing, start=1):
            if self.path(case) is None:  # an earlier one of these may have the same step
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
