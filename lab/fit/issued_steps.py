"""How long hosts took to issue steps on our machines, beside what the reference host would take.

Each lease of our GPU came with another host. The machines are those of `lab.measured.timed`
(iterations of the suite and of the first blind test), and those on which later steps were timed:
small eager and compiled steps, four blind tests, decoders with and without checkpointing, and steps
before and after changes that advice proposes.
"""

from __future__ import annotations

import csv
import gzip
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import wavecast
from lab.fit.compiled_host import host_s
from lab.fit.host import HOST_BOUND, host_bound, model_of
from lab.measured import campaigns
from lab.measured.timed import BLIND, GPU, all_machines, file_name, unseen_machines
from lab.places import H200
from lab.steps.advice import PAIRS
from lab.steps.timed_sets import names_of, step_named
from wavecast import Trace
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST, demands
from wavecast.suite.decoders import gpt, llama

LATER = ("host_steps", "blind_3/again", "blind_4/rows", "blind_5/rows", "blind_6/rows")
"""Files of steps that were timed with the host's parts, one for each machine."""
RECORDED = ("host-steps", "third", "fourth", "blind")
"""Campaigns with traces of such steps."""
SIDES = ("before", "after")
OF_THE_HOST = ("fused_optimizer", "fewer_waits", "checkpointing")
"""The changes of `lab.steps.advice` to steps that wait for the host."""
PROFILED = ("first", "second")
"""Machines of the blind test that have steps with checkpointing. A profiler had run on them."""

DECODERS: dict[str, dict[str, Any]] = {
    "gpt 12x512 s256": {"layers": 12, "hidden": 512, "heads": 8, "seq": 256},
    "gpt 24x1024 s512": {"layers": 24, "hidden": 1024, "heads": 16, "seq": 512},
    "gpt 24x2048 s2048": {"layers": 24, "hidden": 2048, "heads": 16, "seq": 2048},
    "llama 16x512 s128": {"layers": 16, "hidden": 512, "heads": 8, "seq": 128, "ffn": 1408},
    "llama 16x2048 s1024": {
        **{"layers": 16, "hidden": 2048, "heads": 16, "kv_heads": 8, "seq": 1024, "ffn": 5632}
    },
}
RECOMPUTE = ("none", "full")
"""Decoders that were timed with and without checkpointed blocks."""

_COSTS_S = np.array([getattr(REFERENCE_HOST, name) for name in COSTS])


@dataclass(frozen=True)
class IssuedStep:
    """A step that one machine's host issued."""

    machine: str
    name: str
    family: str
    """Steps of the same family are left out together."""
    seconds: float
    """The time that the host took."""
    reference_s: float
    """The time that the reference host takes, without what checkpointing adds."""
    again_s: float
    """What it adds if each block that is computed again costs the host one more forward op."""
    trace: Trace
    """A trace of the step; of the suite's, at another batch."""

    def predicted_s(self, hooks: float) -> float:
        """The reference host's time if checkpointing adds this many forward ops for a block."""
        return self.reference_s + hooks * self.again_s


def machine_factor(steps: Sequence[IssuedStep]) -> float:
    """How many times as long as the reference host a machine takes: the median of some steps."""
    return statistics.median(step.seconds / step.reference_s for step in steps)


def by_iterations() -> Iterator[IssuedStep]:
    """The host-bound steps of all machines of `lab.measured.timed`."""
    for machine in (*all_machines(), *unseen_machines()):
        for step in host_bound(machine):
            same, alike = recorded(file_name(step.name)), _of_suite(step.name)
            where = machine.name, step.name, model_of(step), step.seconds
            if same is not None:
                yield IssuedStep(*where, *_times(same), same)
            elif alike is not None:  # at another batch, so the counts are those of when it ran
                asked_s = sum(n * getattr(REFERENCE_HOST, cost) for cost, n in step.asked.items())
                yield IssuedStep(*where, asked_s, 0.0, alike)


def of_blind_test() -> Iterator[IssuedStep]:
    """The steps of the first blind test on machines that ran checkpointed ones."""
    for machine in PROFILED:
        document = json.loads((BLIND / f"{machine}.json").read_text(encoding="utf-8"))
        for name, times in document["steps"].items():
            trace = recorded(file_name(name))
            half = {"wall_s": times["seconds"], "issued_s": times["host_s"]}
            seconds = host_s(half, times["gpu_s"])
            if trace is not None and seconds is not None:
                family = " ".join(name.split()[:2])
                yield IssuedStep(f"blind {machine}", name, family, seconds, *_times(trace), trace)


def later(cache: Path | None = None) -> Iterator[IssuedStep]:
    """The later steps; small ones whose traces are in no campaign only if a folder keeps them."""
    for file in LATER:
        with gzip.open(H200 / f"{file}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [row for row in map(json.loads, lines) if "issued_s" in row]
        for row in rows:
            trace = recorded(row["step"])
            if trace is None and cache is not None and row["step"] in names_of("host"):
                trace = _traced(cache, row["step"])
            seconds = None if trace is None else _issuing_s(row, trace)
            if trace is not None and seconds is not None:
                machine = file.partition("/")[0]
                where = machine, row["step"], row["family"]
                yield IssuedStep(*where, seconds, *_times(trace), trace)


def decoders() -> Iterator[IssuedStep]:
    """Decoders with and without checkpointing, traced on this machine; each ran twice."""
    rows = json.loads((H200 / "checkpointed.json").read_text(encoding="utf-8"))
    for size in DECODERS:
        for recompute in RECOMPUTE:
            trace = wavecast.trace(partial(decoder_of, size, recompute), gpu=GPU)
            for row in rows:
                half = {"wall_s": row["seconds"], "issued_s": row["host_s"]}
                seconds = host_s(half, row["gpu_s"])
                if (row["size"], row["recompute"]) == (size, recompute) and seconds is not None:
                    name = f"{size} {recompute}"
                    yield IssuedStep("decoders", name, size, seconds, *_times(trace), trace)


def decoder_of(size: str, recompute: str) -> Callable[[], Any]:
    """The step of a decoder with or without checkpointed blocks, one sequence in bfloat16."""
    make = gpt if size.startswith("gpt") else llama
    return make(1, "bf16", recompute=recompute, **DECODERS[size])


def advised() -> Iterator[IssuedStep]:
    """The steps before and after changes that advice proposes, traced on this machine.

    The GPU's part of them was not measured: those are left out whose predicted GPU time is long.
    """
    with (H200 / "advice.csv").open(encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    for pair in (pair for pair in PAIRS if pair.change in OF_THE_HOST):
        for side, make, samples in zip(SIDES, (pair.before, pair.after), pair.samples, strict=True):
            trace = wavecast.trace(make, gpu=GPU)
            seconds = float(rows[pair.name][f"{side}_s"]) * samples
            if wavecast.predict(trace, GPU).gpu_s < HOST_BOUND * seconds:
                where = "advice", f"{pair.name} {side}", pair.name
                yield IssuedStep(*where, seconds, *_times(trace), trace)


def recorded(name: str) -> Trace | None:
    """The trace of a step, as it ran or as it was made without a GPU."""
    traces = (campaigns.traces(campaign) for campaign in RECORDED)
    known = (*traces, campaigns.traces("later", campaigns.TRACED))
    return next((trace[name] for trace in known if name in trace), None)


def _issuing_s(row: dict[str, Any], trace: Trace) -> float | None:
    """The host's time; None where the GPU, for which it waits, hides it."""
    waits = any(call.syncs for call in trace.calls)
    if waits and row["busy_s"] >= HOST_BOUND * row["wall_s"]:
        return None
    return host_s(row, row["busy_s"])


def _times(trace: Trace) -> tuple[float, float]:
    """The reference host's time without checkpointing, and what one op for each block adds."""
    bare, once = (
        float((demands(trace.calls, hooks=hooks) @ _COSTS_S).sum()) for hooks in (0.0, 1.0)
    )
    return bare, once - bare


def _of_suite(title: str) -> Trace | None:
    """The trace of a benchmark of the suite, in the same kind of precision; None of other steps."""
    model, _, settings = title.partition(" b")
    precision = settings.rpartition(" ")[2]
    keys = campaigns.traces("suite-half" if precision == "fp16" else "suite")
    end = "fp32" if precision == "tf32" else precision
    same = (key for key in keys if key.startswith(f"{model}-b") and key.endswith(end))
    return next((keys[key] for key in same), None)


def _traced(cache: Path, name: str) -> Trace:
    """The trace of a later step, made on this machine where the folder lacks it."""
    from lab.steps.libraries import import_torchvision

    path = cache / f"{name}.json.gz"
    if not path.exists():
        import_torchvision()
        step = step_named(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        wavecast.trace(partial(step.make, step.mode), gpu=GPU).save(path)
    return wavecast.load_trace(path)
