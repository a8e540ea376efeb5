"""Results of the benchmark suite: the CSV table that `wavecast suite run` writes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from wavecast.analysis.profile import profile_measured
from wavecast.files import GrowingTable
from wavecast.hardware.devices import Device, known_device
from wavecast.results import Shown
from wavecast.traces.step import Trace


@dataclass(frozen=True, slots=True)
class SuiteStep:
    """One training step of the suite."""

    model: str
    batch: int
    """The samples of one step on each GPU."""
    precision: str
    gpus: int = 1
    """How many GPUs run it, each with its own batch (data parallelism)."""
    nodes: int = 1
    """How many machines these GPUs are in."""


@dataclass(frozen=True, slots=True)
class SuiteResult(Shown):
    """The measured or predicted values of one step.

    A value is None when it is unknown, or when the step did not run.
    """

    model: str
    batch: int
    precision: str
    gpu: str
    status: str
    """"ok", "oom" (out of memory) or "predicted"."""
    unit: str = "samples"
    seconds: float | None = None
    """The median iteration of the stable phase."""
    throughput_per_s: float | None = None
    gpu_utilisation: float | None = None
    fp32_utilisation: float | None = None
    tensor_utilisation: float | None = None
    cpu_utilisation: float | None = None
    gpu_s: float | None = None
    host_s: float | None = None
    weights_bytes: int | None = None
    weight_gradients_bytes: int | None = None
    feature_maps_bytes: int | None = None
    workspace_bytes: int | None = None
    dynamic_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    warm_up: int | None = None
    """How many iterations came before the stable phase; a third of them if it was not found."""
    iterations: int | None = None
    """How many iterations the stable phase has."""
    software: str = ""
    settled: bool | None = None
    """Whether the stable phase was found. None when unknown, as in files of earlier versions."""
    tokens_per_s: float | None = None
    """The tokens of a second, beside the throughput in `unit`. None for models without tokens."""
    gpus: int = 1
    """How many GPUs ran it, each with its own batch; the throughput is that of all together."""
    nodes: int = 1
    """How many machines these GPUs are in."""

    @property
    def framework(self) -> str:
        """The framework of a result: the first word of its software, without the version."""
        return self.software.partition(" ")[0].strip(",")

    @property
    def configuration(self) -> SuiteStep:
        """The step that was measured or predicted."""
        return SuiteStep(self.model, self.batch, self.precision, self.gpus, self.nodes)


COLUMNS = tuple(field.name for field in fields(SuiteResult))

_COUNTS = {"gpus", "nodes"}
_WHOLE = {"batch", "warm_up", "iterations", *_COUNTS} | {n for n in COLUMNS if n.endswith("_bytes")}
_TEXTS = {"model", "precision", "gpu", "status", "unit", "software"}
_ANSWERS = {True: "yes", False: "no"}
_EARLIER = (
    COLUMNS[: COLUMNS.index("settled")],
    COLUMNS[: COLUMNS.index("tokens_per_s") + 1],
)
"""The columns of files that earlier versions wrote."""


CPU = "cpu"
"""What results have in place of a GPU if they were tried out on a CPU."""


def gpu_name(gpu: str) -> str:
    """The name of the GPU with this id."""
    return "a CPU" if gpu == CPU else known_device(gpu).name


def read_results(path: Path) -> tuple[SuiteResult, ...]:
    """The results in a file; of a step measured again on a GPU, the last one there."""
    rows = {(row.configuration, row.gpu, row.framework): row for row in TABLE.read(path)}
    return tuple(rows.values())


def _to_texts(result: SuiteResult) -> dict[str, str]:
    values = {name: getattr(result, name) for name in COLUMNS}
    return {
        name: _ANSWERS[value] if isinstance(value, bool) else _text(value)
        for name, value in values.items()
    }


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _from_texts(texts: Mapping[str, str]) -> SuiteResult:
    return SuiteResult(**{name: _value(name, text) for name, text in texts.items()})


MOST = 1e18
"""No measured figure is as large."""


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return text
    if not text:
        return 1 if name in _COUNTS else None
    if name == "settled":
        return {answer: value for value, answer in _ANSWERS.items()}[text]
    number = int(text) if name in _WHOLE else float(text)
    least = 1 if name in _COUNTS else 0
    if not least <= number < MOST:
        raise ValueError(f"{name} is {text[:40]}, but must be a number from {least} to {MOST:g}")
    return number


TABLE = GrowingTable("suite results", COLUMNS, _to_texts, _from_texts, _EARLIER)


def write_results(path: Path, results: Sequence[SuiteResult]) -> None:
    """Write results into a new file; one that exists is replaced."""
    TABLE.write(path, results)


# TBD's twelve observations (Zhu et al., IISWC 2018, section IV), judged on results of the suite.
# Observation 3 needs results of two frameworks, 8 measured traces, 9 results of two GPUs, and 12
# results on several GPUs; without them they say what is missing.


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
    """All observations that one GPU and one framework can show, but for those of kernels.

    Results that had not settled count only for those of memory, as their time is not that of a
    step.
    """
    of_memory = partial(_observed, list(sweeps(rows)), _namer(rows))
    rows, restless = _settled(rows)
    all_sweeps, name = list(sweeps(rows)), _namer(rows)
    observation = partial(_observed, all_sweeps, name)
    recurrent, plain = RECURRENT.__contains__, lambda model: model not in RECURRENT
    lstm, no_lstm = LSTM.__contains__, lambda model: model not in LSTM
    use, gains = between("gpu_utilisation"), each(gain, "{:+.0%}".format, name)
    of_time = (
        observation(
            1, "throughput does not fall with the batch", rising("throughput_per_s"), growth
        ),
        observation(
            2,
            "recurrent models are not saturated at the largest batch",
            growing,
            gains,
            recurrent,
        ),
        observation(
            2, "the other models are saturated", lambda s: not growing(s), typical_gain, plain
        ),
        observation(
            4, "GPU utilisation does not fall with the batch", rising("gpu_utilisation"), use
        ),
        observation(
            5,
            "GPU utilisation of LSTM models is low",
            last_below(LOW),
            each(lambda sweep: sweep[-1].gpu_utilisation or 0.0, "{:.0%}".format, name),
            lstm,
        ),
        observation(
            5,
            "GPU utilisation of the other models is 95% or more",
            lambda sweep: not last_below(0.95)(sweep),
            use,
            no_lstm,
        ),
        observation(
            6, "utilisation of the cores does not fall with the batch", rising_cores, core_use
        ),
    )
    return (
        *(_without(restless, observation) for observation in of_time),
        of_memory(
            10,
            "feature maps are most of the memory",
            feature_maps_dominate,
            feature_map_shares,
        ),
        of_memory(11, "feature maps grow in proportion to the batch", proportional, disproportion),
        _without(restless, _seventh(all_sweeps, name)),
    )


def _settled(rows: Sequence[SuiteResult]) -> tuple[list[SuiteResult], int]:
    """The results whose time is that of a stable phase, and how many others there are."""
    steady = [row for row in rows if row.settled is not False]
    return steady, len(rows) - len(steady)


def _without(restless: int, observation: Observation) -> Observation:
    if not restless:
        return observation
    return replace(
        observation, figure=f"{observation.figure}; left out, since not settled: {restless} results"
    )


def _observed(
    every: Sequence[Sweep],
    name: Callable[[SuiteResult], str],
    number: int,
    claim: str,
    holds: Callable[[Sweep], bool],
    figure: Callable[[Sequence[Sweep]], str],
    chosen: Callable[[str], bool] = lambda model: True,
) -> Observation:
    """One observation: which sweeps of the chosen models show it."""
    here = [sweep for sweep in every if chosen(sweep[0].model)]
    words = figure(here) if here else "no such model was run at two batches"
    return _judged(number, claim, {name(sweep[0]): holds(sweep) for sweep in here}, words)


def observe_all(
    rows: Sequence[SuiteResult], traces: Mapping[str, Trace] | None = None
) -> tuple[Observation, ...]:
    """All twelve observations, in TBD's order; those that cannot be judged say what is missing.

    The measured traces of `suite run --traces` are for observation 8.
    """
    single = [row for row in rows if row.gpus == 1]
    eighth = Observation(8, _EIGHTH, figure="needs the measured traces (--traces FOLDER)")
    if traces:
        gpu = next(row.gpu for row in single)
        eighth = observe_kernels(traces, known_device(gpu))
    steady, restless = _settled(rows)
    alone = [row for row in steady if row.gpus == 1]
    others = (_third(alone), _ninth(alone), *_twelfth(steady))
    observations = (*observe(single), eighth, *(_without(restless, other) for other in others))
    return tuple(sorted(observations, key=lambda observation: observation.number))


def _namer(rows: Sequence[SuiteResult]) -> Callable[[SuiteResult], str]:
    """A function that names a sweep: model and precision, and the GPU if there are several."""
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
    words = ", ".join(f"{name}: {framework}" for name, framework in first.items())
    return _judged(3, claim, dict.fromkeys(first, differs), f"ahead: {words}")


def _seventh(every: Sequence[Sweep], name: Callable[[SuiteResult], str]) -> Observation:
    """Recurrent models compared with the median of the others, in the same precision."""
    claim = "recurrent models use the cores less than the median of the other models"
    verdicts, words = {}, []
    for sweep in every:
        last = sweep[-1]
        others = sorted(
            cores(other[-1])
            for other in every
            if other[0].model not in RECURRENT
            and (other[0].precision, other[0].gpu) == (last.precision, last.gpu)
        )
        if last.model in RECURRENT and others:
            middle = others[len(others) // 2]
            verdicts[name(last)] = cores(last) < middle
            words.append(f"{name(last)} {cores(last):.0%} beside {middle:.0%}")
    missing = "needs recurrent models beside others, at two batches"
    return _judged(7, claim, verdicts, ", ".join(words) or missing)


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
    words = (
        f"throughput x {min(ratios):.2f} to {max(ratios):.2f}; GPU use is lower in {less_busy}, "
        f"use of the cores in {less_used} of {len(ratios)}"
    )
    return _judged(9, claim, verdicts, words)


def peak_flops(gpu: str) -> float:
    """The fp32 peak of a GPU, by which GPUs are ordered; 0 if unknown, as for a CPU."""
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
    scaled = []
    for row in rows:
        alone = single.get((row.gpu, replace(row.configuration, gpus=1, nodes=1)))
        if row.gpus > 1 and alone and row.throughput_per_s:
            scaled.append(ScaledResult(row, row.throughput_per_s / row.gpus / alone))
    return tuple(scaled)


def _twelfth(rows: Sequence[SuiteResult]) -> tuple[Observation, ...]:
    """One machine with several GPUs scales well, and several machines need bandwidth."""
    claims = {
        False: f"GPUs of one machine keep {SCALES_WELL:.0%} of their speed or more",
        True: "GPUs in several machines are together slower than one GPU alone",
    }
    observations = []
    for several, claim in claims.items():
        chosen = [result for result in scaled_results(rows) if (result.row.nodes > 1) is several]
        verdicts, words = {}, []
        for result in chosen:
            row = result.row
            name = f"{row.model} b{row.batch} {row.precision}, {row.gpus} GPUs"
            name += f" on {row.nodes} machines" if several else ""
            faster = result.efficiency * row.gpus > 1
            verdicts[name] = not faster if several else result.efficiency >= SCALES_WELL
            words.append(f"{name}: {result.efficiency:.0%} of each GPU's speed")
        where = "several machines" if several else "several GPUs of one machine"
        missing = f"needs results on {where}: rows with the columns gpus and nodes"
        observations.append(_judged(12, claim, verdicts, "; ".join(words) or missing))
    return tuple(observations)


RECURRENT = frozenset({"nmt", "gnmt", "deep-speech-2"})
"""Models that spend most of their time in recurrent layers."""
LSTM = RECURRENT - {"deep-speech-2"}
"""Those with LSTM layers. TBD's Deep Speech 2 has plain ones, and keeps the GPU busy."""

NOISE = 0.03
"""A relative drop smaller than this does not count as one."""
SATURATED = 1.10
"""A GPU is saturated if doubling the batch multiplies the throughput by less than this.

TBD calls Inception-v3 saturated, which is below it."""
EQUAL = 0.02
"""Bytes per sample that differ by less than this are equal: the largest part of the difference is
padding, since sentences and utterances are padded to the longest of their batch."""
LOW = 0.8
"""GPU utilisation below this is low in TBD; its models that are not recurrent reach 0.95."""

Sweep = tuple[SuiteResult, ...]
"""The results of a model in one precision on one GPU, in order of batch."""


def sweeps(rows: Sequence[SuiteResult]) -> Iterator[Sweep]:
    """The results of each model, precision and GPU in order of batch, where at least two ran."""
    groups: dict[tuple[str, str, str, str], list[SuiteResult]] = {}
    for row in rows:
        if row.seconds is not None or row.status == "ok":
            key = row.gpu, row.framework, row.model, row.precision
            groups.setdefault(key, []).append(row)
    for group in groups.values():
        if len(group) > 1:
            yield tuple(sorted(group, key=lambda row: row.batch))


def cores(row: SuiteResult) -> float:
    """The utilisation of the cores that compute: FP32 and tensor cores together."""
    return (row.fp32_utilisation or 0.0) + (row.tensor_utilisation or 0.0)


def feature_map_share(row: SuiteResult) -> float:
    """The share of feature maps in the memory of TBD's five kinds."""
    maps = row.feature_maps_bytes or 0
    kinds = row.weights_bytes, row.weight_gradients_bytes, row.workspace_bytes, row.dynamic_bytes
    return maps / max(1, maps + sum(kind or 0 for kind in kinds))


def rising(name: str) -> Callable[[Sweep], bool]:
    """A function that says whether an attribute falls nowhere with the batch."""

    def holds(sweep: Sweep) -> bool:
        values = [getattr(row, name) or 0.0 for row in sweep]
        return all(after >= (1 - NOISE) * before for before, after in pairwise(values))

    return holds


def rising_cores(sweep: Sweep) -> bool:
    """Whether the utilisation of the cores falls nowhere with the batch."""
    return all(cores(after) >= (1 - NOISE) * cores(before) for before, after in pairwise(sweep))


def _ratio(sweep: Sweep, last: int = 0) -> float:
    """The throughput at the largest batch, divided by that at another one."""
    return (sweep[-1].throughput_per_s or 0.0) / (sweep[last].throughput_per_s or 1.0)


def growing(sweep: Sweep) -> bool:
    """Whether the largest batch still pays: the GPU is not saturated."""
    return _ratio(sweep, -2) >= SATURATED


def gain(sweep: Sweep) -> float:
    """How much the largest batch gains in throughput over the next smaller one."""
    return _ratio(sweep, -2) - 1


def last_below(limit: float) -> Callable[[Sweep], bool]:
    """A function that says whether GPU utilisation at the largest batch is below a limit."""
    return lambda sweep: (sweep[-1].gpu_utilisation or 0.0) < limit


def feature_maps_dominate(sweep: Sweep) -> bool:
    """Whether feature maps are most of the memory at the largest batch."""
    return feature_map_share(sweep[-1]) > 0.5


def _per_sample(sweep: Sweep) -> list[float]:
    """The bytes of each sample, relative to those in the largest batch."""
    nbytes = [(row.feature_maps_bytes or 0) / row.batch for row in sweep]
    return [nbyte / nbytes[-1] for nbyte in nbytes] if nbytes[-1] else [1.0]


def proportional(sweep: Sweep) -> bool:
    """Whether each sample takes as many bytes in every batch as in the largest one."""
    return all(abs(ratio - 1) < EQUAL for ratio in _per_sample(sweep))


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0%}"


def growth(every: Sequence[Sweep]) -> str:
    """How throughput grows from the smallest to the largest batch."""
    ratios = [_ratio(sweep) for sweep in every]
    return f"from smallest to largest batch x {min(ratios):.2f} to {max(ratios):.2f}"


def typical_gain(every: Sequence[Sweep]) -> str:
    """How much the largest batch gains over the next smaller one."""
    gains = [gain(sweep) for sweep in every]
    return f"last step of the batch {min(gains):+.0%} to {max(gains):+.0%}, median {_median(gains)}"


def between(name: str) -> Callable[[Sequence[Sweep]], str]:
    """A function that tells the median of an attribute at the smallest and the largest batch."""

    def told(every: Sequence[Sweep]) -> str:
        ends = [[getattr(sweep[end], name) or 0.0 for sweep in every] for end in (0, -1)]
        return f"median {_median(ends[0])} at the smallest, {_median(ends[1])} at the largest batch"

    return told


def core_use(every: Sequence[Sweep]) -> str:
    """The median use of the cores at the smallest and the largest batch."""
    ends = [[cores(sweep[end]) for sweep in every] for end in (0, -1)]
    return f"median {_median(ends[0])} at the smallest, {_median(ends[1])} at the largest batch"


def each(
    value: Callable[[Sweep], float],
    shown: Callable[[float], str],
    name: Callable[[SuiteResult], str],
) -> Callable[[Sequence[Sweep]], str]:
    """A function that tells a value of each sweep, with its name."""
    return lambda every: ", ".join(f"{name(s[0])} {shown(value(s))}" for s in every)


def feature_map_shares(every: Sequence[Sweep]) -> str:
    """The share of feature maps in the memory."""
    shares = [feature_map_share(sweep[-1]) for sweep in every]
    return f"{min(shares):.0%} to {max(shares):.0%} of the memory, median {_median(shares)}"


def disproportion(every: Sequence[Sweep]) -> str:
    """How far feature maps are from proportional."""
    worst = max(abs(ratio - 1) for sweep in every for ratio in _per_sample(sweep))
    return f"bytes for each sample differ by at most {worst:.1%}"
