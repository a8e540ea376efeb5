"""Do TBD's twelve observations (Zhu et al., IISWC 2018, section IV) hold in results of the suite?

Observation 3 needs results of two frameworks, 8 the measured traces, 9 results of two GPUs, and 12
results on several GPUs. Without them they are not judged, and say what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from wavecast.hardware.device import Device
from wavecast.hardware.devices import known_device
from wavecast.runs import suite_sweeps as of
from wavecast.runs.suite_results import CPU, SuiteResult
from wavecast.runs.suite_sweeps import LSTM, RECURRENT, Sweep, cores, sweeps
from wavecast.showing import Shown
from wavecast.steps.profile import profile_measured
from wavecast.traces.step import Trace

_BATCH_NORM = re.compile(r"batch_norm|bn_(?:fw|bw)")

SCALES_WELL = 0.8
"""GPUs of one machine that keep this share of their speed scale "reasonably well"; it is ours."""

PRINTED = {
    1: "holds for all models",
    2: "NMT gains 25% from batch 64 to 128; Inception-v3 less than 10% from 16 to 32",
    3: "MXNet is ahead on ResNet-50 and Inception-v3, TensorFlow on Seq2Seq: 365 samples/s at "
    "batch 128, MXNet 229 at 64; Faster R-CNN 2.3 images/s on both",
    4: "holds; Faster R-CNN 89.4% (TensorFlow) and 90.3% (MXNet)",
    5: "others and Deep Speech 2 reach 95%; NMT and Sockeye stay low",
    6: "holds; Faster R-CNN 70.9% (MXNet) and 58.9% (TensorFlow)",
    7: "Seq2Seq and Deep Speech 2 are much lower than the others",
    8: "ResNet-50 at batch 32: batch norm kernels take 10.2% (TensorFlow) and 17.4% (MXNet) of the "
    "time at 41 to 46% FP32 utilisation",
    9: "a TITAN Xp is faster than a P4000 but for Sockeye, with lower utilisation for most models",
    10: "feature maps are 62% (Deep Speech 2) to 89% (ResNet-50, Sockeye) of the memory",
    11: "almost linear in the batch",
    12: "two machines over 1 Gb/s are much slower than expected; GPUs on PCIe 3.0 scale reasonably",
}
"""What TBD prints, on a Quadro P4000 where it names no other GPU."""


@dataclass(frozen=True)
class Observation(Shown):
    """One of the paper's findings, and the models that show it here."""

    number: int
    """TBD's number."""
    claim: str
    """What TBD found, in a sentence."""
    agreeing: tuple[str, ...] = ()
    """The models (with their precision) that show it."""
    others: tuple[str, ...] = ()
    """The models that do not."""
    figure: str = ""
    """What was found, in figures; where it could not be judged, what is missing."""

    @property
    def share(self) -> float:
        """The share of the models that show it; 0 if none was judged."""
        total = len(self.agreeing) + len(self.others)
        return len(self.agreeing) / total if total else 0.0

    @property
    def holds(self) -> bool | None:
        """Whether all models show it; None if none was judged."""
        return None if not (self.agreeing or self.others) else not self.others

    @property
    def printed(self) -> str:
        """What TBD prints."""
        return PRINTED[self.number]


def observe(rows: Sequence[SuiteResult]) -> tuple[Observation, ...]:
    """Every observation that one GPU and one framework can show, but for those of kernels.

    Results that had not settled count for those of memory only: their time is not that of a step.
    """
    of_memory = partial(_observed, list(sweeps(rows)), _namer(rows))
    rows, restless = _settled(rows)
    found, name = list(sweeps(rows)), _namer(rows)
    observation = partial(_observed, found, name)
    recurrent, plain = RECURRENT.__contains__, lambda model: model not in RECURRENT
    lstm, no_lstm = LSTM.__contains__, lambda model: model not in LSTM
    use, gains = of.between("gpu_utilisation"), of.each(of.gain, "{:+.0%}".format, name)
    of_time = (
        observation(
            1, "throughput does not fall with the batch", of.rising("throughput_per_s"), of.growth
        ),
        observation(
            2,
            "recurrent models are not saturated at the largest batch",
            of.growing,
            gains,
            recurrent,
        ),
        observation(
            2, "the other models are saturated", lambda s: not of.growing(s), of.typical_gain, plain
        ),
        observation(
            4, "GPU utilisation does not fall with the batch", of.rising("gpu_utilisation"), use
        ),
        observation(
            5,
            "GPU utilisation of LSTM models is low",
            of.last_below(of.LOW),
            of.each(lambda sweep: sweep[-1].gpu_utilisation or 0.0, "{:.0%}".format, name),
            lstm,
        ),
        observation(
            5,
            "GPU utilisation of the other models is 95% or more",
            lambda sweep: not of.last_below(0.95)(sweep),
            use,
            no_lstm,
        ),
        observation(
            6, "utilisation of the cores does not fall with the batch", of.rising_cores, of.core_use
        ),
    )
    return (
        *(_without(restless, one) for one in of_time),
        of_memory(
            10,
            "feature maps are most of the memory",
            of.feature_maps_dominate,
            of.feature_map_shares,
        ),
        of_memory(
            11, "feature maps grow in proportion to the batch", of.proportional, of.disproportion
        ),
        _without(restless, _seventh(found, name)),
    )


def _settled(rows: Sequence[SuiteResult]) -> tuple[list[SuiteResult], int]:
    """The results whose time is that of a stable phase, and how many others there are."""
    steady = [row for row in rows if row.settled is not False]
    return steady, len(rows) - len(steady)


def _without(restless: int, one: Observation) -> Observation:
    """An observation that says how many results it leaves out."""
    if not restless:
        return one
    return replace(one, figure=f"{one.figure}; left out, since not settled: {restless} results")


def _observed(
    found: Sequence[Sweep],
    name: Callable[[SuiteResult], str],
    number: int,
    claim: str,
    holds: Callable[[Sweep], bool],
    figure: Callable[[Sequence[Sweep]], str],
    chosen: Callable[[str], bool] = lambda model: True,
) -> Observation:
    """One observation: which sweeps of the chosen models show it."""
    here = [sweep for sweep in found if chosen(sweep[0].model)]
    told = figure(here) if here else "no such model was run at two batches"
    return _judged(number, claim, {name(sweep[0]): holds(sweep) for sweep in here}, told)


def observe_all(
    rows: Sequence[SuiteResult], traces: Mapping[str, Trace] | None = None
) -> tuple[Observation, ...]:
    """All twelve observations, in TBD's order; those that cannot be judged say what is missing.

    Args:
        rows: results of any number of GPUs, machines and frameworks.
        traces: the measured traces of `suite run --traces` by name, for observation 8.
    """
    single = [row for row in rows if row.gpus == 1]
    eighth = Observation(8, _EIGHTH, figure="needs the measured traces (--traces FOLDER)")
    if traces:
        gpu = next(row.gpu for row in single)
        eighth = observe_kernels(traces, known_device(gpu))
    steady, restless = _settled(rows)
    alone = [row for row in steady if row.gpus == 1]
    others = (_third(alone), _ninth(alone), *_twelfth(steady))
    found = (*observe(single), eighth, *(_without(restless, one) for one in others))
    return tuple(sorted(found, key=lambda one: one.number))


def _namer(rows: Sequence[SuiteResult]) -> Callable[[SuiteResult], str]:
    """How a sweep is called: model and precision, and the GPU if there are several."""
    several = len({row.gpu for row in rows}) > 1
    return lambda row: f"{row.model} {row.precision}" + (f" on {row.gpu}" if several else "")


def _judged(number: int, claim: str, verdicts: Mapping[str, bool], figure: str) -> Observation:
    agreeing = tuple(name for name, holds in verdicts.items() if holds)
    others = tuple(name for name, holds in verdicts.items() if not holds)
    return Observation(number, claim, agreeing, others, figure)


def _third(rows: Sequence[SuiteResult]) -> Observation:
    """Whether the faster framework depends on the model."""
    claim = "which framework is faster depends on the model"
    rates: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.throughput_per_s and row.framework:
            best = rates.setdefault(f"{row.model} {row.precision} {row.gpu}", {})
            best[row.framework] = max(best.get(row.framework, 0.0), row.throughput_per_s)
    first = {name: max(best, key=best.__getitem__) for name, best in rates.items() if len(best) > 1}
    if not first:
        return Observation(3, claim, figure="needs results of two frameworks for the same model")
    differs = len(set(first.values())) > 1
    told = ", ".join(f"{name}: {one}" for name, one in first.items())
    return _judged(3, claim, dict.fromkeys(first, differs), f"ahead: {told}")


def _seventh(found: Sequence[Sweep], name: Callable[[SuiteResult], str]) -> Observation:
    """Recurrent models compared with the median of the others, in the same precision."""
    claim = "recurrent models use the cores less than the median of the other models"
    verdicts, told = {}, []
    for sweep in found:
        last = sweep[-1]
        others = sorted(
            cores(other[-1])
            for other in found
            if other[0].model not in RECURRENT
            and (other[0].precision, other[0].gpu) == (last.precision, last.gpu)
        )
        if last.model in RECURRENT and others:
            middle = others[len(others) // 2]
            verdicts[name(last)] = cores(last) < middle
            told.append(f"{name(last)} {cores(last):.0%} beside {middle:.0%}")
    missing = "needs recurrent models beside others, at two batches"
    return _judged(7, claim, verdicts, ", ".join(told) or missing)


_EIGHTH = "batch normalisation is among the five longest kernels of below-average utilisation"


def observe_kernels(traces: Mapping[str, Trace], device: Device) -> Observation:
    """Observation 8: batch normalisation is among the long kernels of low utilisation."""
    verdicts = {}
    for name, trace in traces.items():
        if any("batch_norm" in call.op.base for call in trace):
            worst = profile_measured(name, trace, device).wasteful(5)
            verdicts[name] = any(_BATCH_NORM.search(kernel.name) for kernel in worst)
    held = sum(verdicts.values())
    return _judged(8, _EIGHTH, verdicts, f"in {held} of {len(verdicts)} steps with such layers")


def _ninth(rows: Sequence[SuiteResult]) -> Observation:
    """Each model on two GPUs: the stronger one is faster, and is used less."""
    claim = "a stronger GPU is faster, and its utilisation is lower"
    strength = {row.gpu: peak_flops(row.gpu) for row in rows}
    order = sorted(strength, key=strength.__getitem__)
    by_step = {(row.gpu, row.configuration): row for row in rows if row.seconds is not None}
    verdicts: dict[str, bool] = {}
    ratios, less_busy, less_used = [], 0, 0
    for weak, strong in pairwise(order):
        for (gpu, step), here in by_step.items():
            there = by_step.get((strong, step))
            if gpu != weak or there is None or not here.throughput_per_s:
                continue
            ratio = (there.throughput_per_s or 0.0) / here.throughput_per_s
            idler = (there.gpu_utilisation or 0.0) < (here.gpu_utilisation or 0.0)
            weaker = cores(there) < cores(here)
            ratios.append(ratio)
            less_busy, less_used = less_busy + idler, less_used + weaker
            name = f"{step.model} b{step.batch} {step.precision}: {weak} to {strong}"
            verdicts[name] = ratio > 1 and idler and weaker
    if not ratios:
        return Observation(9, claim, figure="needs results of two GPUs for the same steps")
    told = (
        f"throughput x {min(ratios):.2f} to {max(ratios):.2f}; GPU use is lower in {less_busy}, "
        f"use of the cores in {less_used} of {len(ratios)}"
    )
    return _judged(9, claim, verdicts, told)


def peak_flops(gpu: str) -> float:
    """The fp32 peak of a GPU, by which GPUs are ordered; 0 where it is unknown, as for a CPU."""
    return 0.0 if gpu == CPU else known_device(gpu).fp32_flops or 0.0


@dataclass(frozen=True)
class ScaledResult:
    """A step on several GPUs, beside the same step on one."""

    row: SuiteResult
    efficiency: float
    """The throughput, divided by that of as many single GPUs."""


def scaled_results(rows: Sequence[SuiteResult]) -> tuple[ScaledResult, ...]:
    """The results on several GPUs for which the step of one GPU is known."""
    single = {
        (row.gpu, row.configuration): row.throughput_per_s
        for row in rows
        if row.gpus == 1 and row.throughput_per_s
    }
    found = []
    for row in rows:
        alone = single.get((row.gpu, replace(row.configuration, gpus=1, nodes=1)))
        if row.gpus > 1 and alone and row.throughput_per_s:
            found.append(ScaledResult(row, row.throughput_per_s / row.gpus / alone))
    return tuple(found)


def _twelfth(rows: Sequence[SuiteResult]) -> tuple[Observation, ...]:
    """One machine with several GPUs scales well, and several machines need bandwidth."""
    claims = {
        False: f"GPUs of one machine keep {SCALES_WELL:.0%} of their speed or more",
        True: "GPUs in several machines are together slower than one GPU alone",
    }
    made = []
    for several, claim in claims.items():
        chosen = [one for one in scaled_results(rows) if (one.row.nodes > 1) is several]
        verdicts, told = {}, []
        for one in chosen:
            row = one.row
            name = f"{row.model} b{row.batch} {row.precision}, {row.gpus} GPUs"
            name += f" on {row.nodes} machines" if several else ""
            faster = one.efficiency * row.gpus > 1
            verdicts[name] = not faster if several else one.efficiency >= SCALES_WELL
            told.append(f"{name}: {one.efficiency:.0%} of each GPU's speed")
        where = "several machines" if several else "several GPUs of one machine"
        missing = f"needs results on {where}: rows with the columns gpus and nodes"
        made.append(_judged(12, claim, verdicts, "; ".join(told) or missing))
    return tuple(made)
