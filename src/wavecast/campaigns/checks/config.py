"""The file that says what is checked: steps, GPUs, and how much each figure may change."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from wavecast.analysis.comparison import WAITS, WORTH_A_ROW_S, PartChange, StepComparison
from wavecast.errors import InvalidInput, WavecastError, prefixed
from wavecast.files import read_toml
from wavecast.hardware.devices import device, names
from wavecast.hardware.kept_hosts import REFERENCE
from wavecast.reading import expected, is_number, read_record, refuse_unknown, table_of, text
from wavecast.targets.targets import begins_with_path

CONFIG = "wavecast.toml"
"""The file that `wavecast check` looks for."""
PROJECT = "pyproject.toml"
"""The file that it takes otherwise, if that has a table [tool.wavecast]."""
BASELINE = "wavecast-baseline.toml"
"""The baseline, if the file of checks names no other."""

_PERCENT = re.compile(r"\s*([0-9.]+)\s*%\s*")


@dataclass(frozen=True)
class Tolerances:
    """How much each figure may change before a check fails; None for a figure that is not checked.

    Predictions of equal steps are equal, so tolerances are no noise: they say what a change of the
    code may cost without a word.
    """

    time: float | None = 0.02
    """The time of the step, as a share of it."""
    memory: float | None = 0.02
    """The peak of allocated memory. What the allocator reserves beyond it depends on the order of
    sizes, so a smaller step may reserve more. That the step still fits is checked in any case."""
    gpu: float | None = 0.05
    """The time in which the GPU is busy, also where the host hides it."""
    host: float | None = 0.10
    """The time that the host needs, also where the GPU hides it."""
    waits: float | None = 0
    """How many more times the host may wait for the GPU."""
    choice: float | None = 0.02
    """How much better another GPU must be, before the choice of the GPU counts as changed."""


_from_1 = expected(lambda count: type(count) is int and count >= 1, "a whole number of at least 1")


@dataclass(frozen=True)
class CheckedTarget:
    """A step to check, and the GPUs to check it on."""

    name: str
    """Its name in the file, and in the baseline."""
    target: str
    """The step, as commands take it."""
    gpus: Annotated[tuple[str, ...], names] = ()
    """The ids of the GPUs."""
    batch: Annotated[int | None, _from_1] = None
    precision: str | None = None
    tolerances: Tolerances = Tolerances()
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of `hf:` targets and of decoders, as the command line names them."""
    assume: Mapping[str, Any] = field(default_factory=dict)
    """What the step reads from the GPU, by line of code."""
    ranks: Annotated[int | None, _from_1] = None
    """How many ranks the step's own parallel code has."""
    compile: bool = False
    """Whether the step is traced as if its modules were compiled."""
    parallel: str = ""
    """How the step is spread over several GPUs, as `--parallel` takes it."""


@dataclass(frozen=True)
class CheckConfig:
    """The steps to check, and where their baseline is."""

    path: Path
    """The file that it was read from."""
    targets: tuple[CheckedTarget, ...]
    baseline: Annotated[Path, text] = Path(BASELINE)
    host: str = REFERENCE
    """The host that issues the steps. One that every machine has gives everyone equal results."""

    def only(self, names: list[str]) -> CheckConfig:
        """The same with these targets alone.

        Raises:
            InvalidInput: there is no target of a name.
        """
        known = {target.name: target for target in self.targets}
        for name in names:
            if name not in known:
                raise InvalidInput(f"{self.path} has no target {name!r}; it has {', '.join(known)}")
        return replace(self, targets=tuple(known[name] for name in names))


def find_config(folder: Path) -> Path:
    """The file of checks in a folder.

    Raises:
        InvalidInput: the folder has none.
    """
    if (folder / CONFIG).is_file():
        return folder / CONFIG
    project = folder / PROJECT
    if project.is_file():
        with prefixed(f"{project}: "):
            if "wavecast" in table_of(read_toml(project), "tool"):
                return project
    raise InvalidInput(
        f"there is no {CONFIG} here, and no [tool.wavecast] in {PROJECT}; write one that names a "
        'step and a GPU, such as: gpus = ["l4"] and [targets.mine] target = "train.py:make_step"'
    )


def read_config(path: Path) -> CheckConfig:
    """The checks that a TOML file asks for.

    Raises:
        InvalidInput: the file cannot be read, or a key or value in it is wrong.
    """
    with prefixed(f"{path}: "):
        table: Mapping[str, Any] = read_toml(path)
        if path.name == PROJECT:
            table = table_of(table_of(table, "tool"), "wavecast")
        shared = ("gpus", "tolerance", "targets")
        config = read_record(
            CheckConfig, table, "a file of checks", besides=shared, path=path, targets=()
        )
        steps = table_of(table, "targets")
        if not steps:
            raise InvalidInput('has no targets; write [targets.mine] and target = "..." below it')
        gpus = names(table.get("gpus", []), "gpus")
        usual = given_tolerances(table_of(table, "tolerance"))
        targets = tuple(
            _target(name, step, gpus, usual, path.parent) for name, step in steps.items()
        )
        return replace(config, baseline=path.parent / config.baseline, targets=targets)


def _target(
    name: str, table: Any, usual_gpus: tuple[str, ...], usual: Tolerances, folder: Path
) -> CheckedTarget:
    where = f"targets.{name}"
    target = read_record(
        CheckedTarget,
        table,
        "a target",
        f"{where}.",
        besides=("tolerance",),
        name=name,
        tolerances=usual,
    )
    try:
        usual = given_tolerances(table_of(table, "tolerance"), usual)
        gpus = target.gpus or usual_gpus
        if not gpus:
            raise InvalidInput('names no GPU; write gpus = ["l4"] there or at the top of the file')
        ids = tuple(dict.fromkeys(device(gpu).id for gpu in gpus))
        target_path = _placed(target.target, folder)
        return replace(target, target=target_path, gpus=ids, tolerances=usual)
    except WavecastError as error:
        raise InvalidInput(f"{where}: {error}") from None


def _placed(target: str, folder: Path) -> str:
    """A target whose file is named from the folder of the file of checks."""
    if not begins_with_path(target) or Path(target).is_absolute():
        return target
    return str(folder / target) if folder != Path() else target


def given_tolerances(
    given: Mapping[str, Any],
    usual: Tolerances = Tolerances(),  # noqa: B008  (it is frozen)
) -> Tolerances:
    """The usual tolerances, with those that are given: shares, percentages, or False and None.

    Raises:
        InvalidInput: there is no such figure, or a value is wrong.
    """
    figures = [field.name for field in fields(Tolerances)]
    refuse_unknown(given, figures, "the tolerances", "tolerance.")
    values = {name: _tolerance(name, value) for name, value in given.items()}
    return replace(usual, **values)


def _tolerance(name: str, value: Any) -> float | None:
    """A tolerance: 0.05, "5%", or false for a figure that is not checked."""
    if value is False or value is None:
        return None
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value)):
        value = float(match[1]) / 100
    if not is_number(value) or not 0 <= value < math.inf:
        raise InvalidInput(
            f'tolerance.{name} must be a share such as 0.05 or "5%", or false to leave the figure '
            f"out, not {value!r}"
        )
    if name == "waits" and value != int(value):
        raise InvalidInput(f"tolerance.waits must be a whole number of waits, not {value!r}")
    return float(value)


# The lines of code at which a step does more than before.


_MOST_OF_AN_OP = 3
_MOST = 10


@dataclass(frozen=True)
class CodePlace:
    """A line of code, and what it does in a step that it did not do before, or less often."""

    file: str
    """The file, relative to the present folder."""
    line: int
    """The number of the line."""
    op: str
    """The op that it calls; `waits` where the host waits for the GPU there."""
    calls: int
    """How many of these calls a step has now at this line."""
    delta_s: float = 0.0
    """The GPU time that all calls of the op take in addition, in seconds; 0 for a wait."""

    @property
    def text(self) -> str:
        """What happens there, in a few words."""
        times = "once" if self.calls == 1 else f"{self.calls} times"
        if self.op == WAITS:
            return f"the host waits for the GPU here {times} in a step"
        return f"{self.op} is called here {times} in a step"


@dataclass(frozen=True)
class ChangedLines:
    """The lines that changed since a commit."""

    since: str
    """The commit."""
    lines: Mapping[str, Sequence[range]] = field(default_factory=dict)
    """Ranges of lines by file, relative to the present folder; an empty list is a new file."""

    def has(self, file: str, line: int) -> bool:
        """Whether a line is among them."""
        if file not in self.lines:
            return False
        return not self.lines[file] or any(line in some for some in self.lines[file])


def new_places(
    comparison: StepComparison, changed: ChangedLines | None = None
) -> tuple[CodePlace, ...]:
    """The lines of waits and ops that are new or that became more, the costliest op first.

    Lines that did not change since the baseline are named only if all that the line does is new.

    Args:
        comparison: the step before and after.
        changed: the lines that changed. None if that is not known.
    """
    places: list[CodePlace] = []
    old, new = comparison.before, comparison.after
    if new.syncs > old.syncs:
        waits = PartChange(WAITS, old.syncs, new.syncs, 0.0, 0.0)
        places += _places_of(waits, new.lines.get(WAITS, {}), changed)
    for part in comparison.ops:
        if part.delta_s >= WORTH_A_ROW_S:
            places += _places_of(part, new.lines.get(part.name, {}), changed)
    return tuple(places[:_MOST])


def _places_of(
    part: PartChange, lines: Mapping[str, int], changed: ChangedLines | None
) -> list[CodePlace]:
    every = [_place(part, line, calls) for line, calls in lines.items()]
    if changed is not None:
        on_changed = [place for place in every if changed.has(place.file, place.line)]
        every = on_changed or (every if part.is_added else [])
    return sorted(every, key=lambda place: -place.calls)[:_MOST_OF_AN_OP]


def _place(part: PartChange, line: str, calls: int) -> CodePlace:
    file, _, number = line.rpartition(":")
    return CodePlace(file, int(number), part.name, calls, part.delta_s)
