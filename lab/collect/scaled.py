"""How long do published steps take on our H200? Records them, to scale to the GPUs of others.

    python -m lab.collect.scaled plan PLAN --data FOLDER           list the steps in order
    python -m lab.collect.scaled measure OUT SECONDS --plan PLAN   measure them, on the GPU

`plan` needs the public tables (docs/sources.md); PLAN contains none of their times. `measure` needs
a GPU, timm, torchvision and transformers, and writes one trace for each step to OUT, until SECONDS
have passed. So that any number of steps is a fair sample, sets take turns, within a set families,
and within a family precisions and models; steps that were published for many GPUs come first. The
traces are the campaign `scaled`, which no fit reads.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import wavecast
from lab import needs
from lab.measured import public_steps
from lab.measured.public_steps.case import Case, Traces
from wavecast import Trace

LARGEST_BYTES = 200_000
"""The largest trace that is kept."""
ALL_BYTES = 8_000_000
"""No step is started when the traces together are larger than this."""
WARM_UP = {"amp_fp16": 12}
"""Warm-up iterations by precision, 3 by default. In float16 the first iterations overflow and skip
the update, until the scale of the loss is small enough."""
WARM_UP_S = 4.0
"""The warm-up ends after this time, once three iterations have run."""
UNTOUCHED_S = 1.5
"""About how long the unprofiled iterations take together; there are three to ten."""


@dataclass(frozen=True)
class Wanted:
    """A step to measure, and the function call that makes it."""

    key: str
    set: str
    name: str
    precision: str
    batch: int
    module: str
    function: str
    args: Sequence[Any]
    keywords: dict[str, Any]

    def make(self) -> Callable[[], Any]:
        """The step, on the current GPU."""
        function = getattr(importlib.import_module(self.module), self.function)
        step: Callable[[], Any] = function(*self.args, **self.keywords)
        return step


def plan(cases: Iterable[Case]) -> Iterator[Wanted]:
    """Each step once, in the order of measurement.

    Compiled steps are left out, because our steps are not compiled.
    """
    steps: dict[str, list[Case]] = {}
    for case in cases:
        if "compiled" not in case.set:
            steps.setdefault(Traces.key(case), []).append(case)
    # The key is a hash, so steps with equally many GPUs are in an arbitrary order.
    first = sorted(steps.items(), key=lambda item: (-_gpus(item[1]), item[0]))
    for case in spread([group[0] for _, group in first], _LEVELS):
        yield _wanted(case)


def _gpus(cases: Iterable[Case]) -> int:
    return len({case.gpu for case in cases})


_LEVELS: tuple[Callable[[Case], str], ...] = (
    lambda case: case.set,
    lambda case: case.family,
    lambda case: f"{case.precision} {case.layout}",
    lambda case: case.model,
)


def spread(cases: Sequence[Case], levels: Sequence[Callable[[Case], str]]) -> list[Case]:
    """Reorder cases so that groups of the first level take turns, then those of the next."""
    if not levels:
        return list(cases)
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(levels[0](case), []).append(case)
    turns = itertools.zip_longest(*(spread(group, levels[1:]) for group in groups.values()))
    return [case for turn in turns for case in turn if case is not None]


def _wanted(case: Case) -> Wanted:
    make = case.make_step
    if not isinstance(make, partial):
        raise TypeError(f"{case.name}: the step is not a partial call, so it cannot be planned")
    return Wanted(
        key=Traces.key(case),
        set=case.set,
        name=case.name,
        precision=case.precision,
        batch=case.batch,
        module=make.func.__module__,
        function=make.func.__name__,
        args=list(make.args),
        keywords=dict(make.keywords),
    )


def measure(out: Path, seconds: float, steps: Iterable[Wanted]) -> None:
    """Record the steps that OUT lacks, one after the other, until the time is up."""
    import torch

    from wavecast.suite.training import float32_products

    out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    done: Counter[str] = Counter()
    for step in steps:
        spent_s = time.monotonic() - begin
        if spent_s > seconds or sum(path.stat().st_size for path in out.iterdir()) > ALL_BYTES:
            print(f"stopped before {step.set}: {step.name}", flush=True)
            break
        path = out / f"{step.key}.json.gz"
        if path.exists():
            continue
        try:
            # float32 products do not use TF32 unless the step itself switches it on; the context
            # also keeps that from later steps.
            with float32_products("fp32"):
                outcome = _record(step, path)
            done[step.set] += path.exists()
        except Exception as error:  # the others still count
            outcome = f"failed: {error!r}"[:300]
        print(f"{spent_s:4.0f} s {step.set}: {step.name}: {outcome}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    for name, count in sorted(done.items()):
        print(f"{name}: {count}")


def _record(wanted: Wanted, path: Path) -> str:
    """Measure one step and keep its trace unless it is too large. Returns a line about it."""
    begin = time.monotonic()
    step = _build(wanted)
    built_s = time.monotonic() - begin
    step_s = _warm_up(step, WARM_UP.get(wanted.precision, 3))
    repeats = max(3, min(10, int(UNTOUCHED_S / step_s)))
    trace = compact(
        wavecast.measure(step, warm_up=0, repeats=repeats, recordings=1, samples=wanted.batch)
    )
    trace.save(path)
    size, measured = path.stat().st_size, trace.measurement
    assert measured is not None
    kept = size <= LARGEST_BYTES
    if not kept:
        path.unlink()
    return (
        f"{(measured.seconds or 0) * 1e3:.1f} ms, GPU {(measured.gpu_s or 0) * 1e3:.1f} ms, "
        f"{len(trace.calls)} calls, {size / 1e3:.0f} kB{'' if kept else ', too large'}, "
        f"built in {built_s:.1f} s, all in {time.monotonic() - begin:.1f} s"
        f"{'; ' + trace.notes[0] if trace.notes else ''}"
    )


def compact(trace: Trace) -> Trace:
    """The trace without its allocations, with host times rounded to three digits."""
    calls = (
        call if call.host_s is None else replace(call, host_s=float(f"{call.host_s:.3g}"))
        for call in trace.calls
    )
    return replace(trace, calls=tuple(calls), allocations=())


def _build(wanted: Wanted) -> Callable[[], Any]:
    """The step after its first run. Weights are initialised on the GPU if the model allows it."""
    import torch

    try:
        with torch.device("cuda"):
            step = wanted.make()
        step()
    except Exception:  # some of its tensors must be on the host
        step = wanted.make()
        step()
    return step


def _warm_up(step: Callable[[], Any], iterations: int) -> float:
    """Run the step this often, or until `WARM_UP_S`. Returns the seconds of one iteration."""
    import torch

    torch.cuda.synchronize()
    begin = time.monotonic()
    for done in range(1, iterations):
        step()
        torch.cuda.synchronize()
        spent_s = time.monotonic() - begin
        if done >= 2 and spent_s > WARM_UP_S:
            break
    return spent_s / done


def main() -> None:
    """Plan or measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    planning = commands.add_parser("plan")
    planning.add_argument("plan", type=Path)
    needs.add_data(planning, *needs.STEPS)
    measuring = commands.add_parser("measure")
    measuring.add_argument("out", type=Path)
    measuring.add_argument("seconds", type=float)
    measuring.add_argument("--plan", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "plan":
        lines = [json.dumps(asdict(step)) for step in plan(public_steps.cases(given.data))]
        given.plan.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{len(lines)} steps")
    else:
        lines = given.plan.read_text(encoding="utf-8").splitlines()
        measure(given.out, given.seconds, [Wanted(**json.loads(line)) for line in lines])


if __name__ == "__main__":
    main()
