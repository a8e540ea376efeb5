"""How well does wave scaling take calls measured on one GPU to another?

    python -m lab score wave --data FOLDER

Needs pandas and the public tables neusight and kernels (docs/sources.md); prints tables.

Every call is scaled from each GPU to each other GPU. The error is that of the ratio of its times:
mean |predicted / measured - 1|. NeuSight's calls were timed alone, so small ones show the time of a
launch; calls above 0.2 ms on both GPUs show kernels. Registers were not recorded, so SM counts are
used in place of wave sizes, except where kernels of one wave are compared.

Three things were chosen on this data, each as one constant for all GPUs: the gamma of contractions
of unknown shape, the rule for less than one wave, and the ranges. Nothing else is fitted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.measured.tables import NEUSIGHT, read_frame
from lab.pages import heading
from wavecast import ops
from wavecast.hardware.devices import Device, device
from wavecast.hardware.occupancy import kernel_blocks_per_sm
from wavecast.ops import Kind
from wavecast.predictors.wave import CONTRACTIONS, Waves, scale, wave_ratio, work_of
from wavecast.traces.step import Kernel, Op, TensorSpec

PAPER = 29.8
"""Percent: the error of wave-scaled operations that Habitat reports (Yu et al., ATC 2021)."""
ABOVE_FLOOR_S = 0.2e-3
"""Longer times show the kernel, not the launch."""
IDS = {**NEUSIGHT, "a40": "a40", "a100": "a100-sxm-80gb"}
NVIDIA = ("P4", "P100", "T4", "V100", "A100-PCIE-40GB")
UNARY = {
    "relu": "aten.relu", "gelu": "aten.gelu", "tanh": "aten.tanh", "softmax": "aten._softmax",
    "addu": "aten.add", "mulu": "aten.mul", "divu": "aten.div", "powu": "aten.pow.Tensor_Scalar",
}  # fmt: skip
BINARY = {
    "add": "aten.add", "mul": "aten.mul", "div": "aten.div", "pow": "aten.pow.Tensor_Tensor",
}  # fmt: skip
COLUMNS = (
    "op gpu b m n k h c_in c_out ksize in_size stride pad latency_ms kernel n_kernels "
    "grid_x grid_y grid_z block_x block_y block_z"
).split()
SIZES = COLUMNS[2:13]
CONTRACTED = ("bmm", "linear", "conv")
SGEMM_REGISTERS = 128
"""An estimate for cuBLAS's single-precision kernels, whose registers were not recorded."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A call that was measured on one GPU."""

    op: str
    gpu: str
    kernel: Kernel
    kernels: int


@dataclass(frozen=True, slots=True)
class WaveCase:
    """A call that was measured on two GPUs, to be scaled from one to the other."""

    op: str
    kind: Kind | None
    intensity: float | None
    origin: str
    target: str
    kernel: Kernel
    """The kernel as measured on the origin."""
    target_s: float

    @property
    def devices(self) -> tuple[Device, Device]:
        """The origin and the target."""
        return gpu(self.origin), gpu(self.target)

    @property
    def above_floor(self) -> bool:
        """Whether its times on both GPUs are those of the kernel, not of the launch."""
        return min(self.kernel.seconds, self.target_s) > ABOVE_FLOOR_S


Method = Callable[[WaveCase], float]
Runs = Mapping[tuple[Any, ...], Mapping[str, MeasuredRun]]
"""Measured runs by call (op and sizes) and by the name of the GPU."""


@cache
def gpu(name: str) -> Device:
    """The device with this name in the tables."""
    return device(IDS[name])


# The methods.


def by_op(case: WaveCase) -> float:
    """The ratio that the library predicts for the op of the call."""
    scaled = scale(case.kernel, *case.devices, case.intensity, case.kind)
    return math.nan if scaled is None else scaled.ratio


def at_gamma(gamma: float, case: WaveCase) -> float:
    """Equation 2 with data-sheet values, and SM counts in place of wave sizes."""
    origin, target = (_sheet(device) for device in case.devices)
    return wave_ratio(origin, target, gamma)


@cache
def _sheet(gpu: Device) -> Waves:
    return Waves(gpu.sm_count or 0, gpu.memory_bytes_per_s, gpu.boost_clock_hz or 0)


def bandwidths(case: WaveCase) -> float:
    """The ratio of memory bandwidths."""
    origin, target = case.devices
    return origin.memory_bytes_per_s / target.memory_bytes_per_s


def peaks(case: WaveCase) -> float:
    """The ratio of peak FLOP/s."""
    origin, target = case.devices
    return origin.fp32_flops / target.fp32_flops


def memory_bound(case: WaveCase) -> float:
    """The library's ratio if every kernel is bound by memory."""
    return by_op(replace(case, intensity=0.0))


METHODS: Mapping[str, Method] = {
    "Eq. 2": by_op,
    "gamma = 1": memory_bound,
    "bandwidths": bandwidths,
    "peak FLOPS": peaks,
}


# The data.


def runs(folder: Path) -> dict[tuple[Any, ...], dict[str, MeasuredRun]]:
    """The first measured run of each call, by call and GPU."""
    table = _read(folder / "neusight" / "ops.parquet", COLUMNS)
    measured: dict[tuple[Any, ...], dict[str, MeasuredRun]] = defaultdict(dict)
    for row in table.itertuples(index=False):
        key = (row.op, *(getattr(row, size) for size in SIZES))
        kernel = Kernel(
            str(row.kernel),
            row.latency_ms / 1e3,
            (row.grid_x, row.grid_y, row.grid_z),
            (row.block_x, row.block_y, row.block_z),
        )
        measured[key].setdefault(row.gpu, MeasuredRun(row.op, row.gpu, kernel, row.n_kernels))
    return measured


def _read(path: Path, columns: Sequence[str]) -> Any:
    table = read_frame(path, list(columns))
    for name in table.columns:
        if str(table[name].dtype).startswith("Int"):
            table[name] = table[name].fillna(0).astype(int)
    return table


def op_of(key: tuple[Any, ...]) -> Op:
    """The op of a row of NeuSight's table."""
    name, b, m, n, k, h, c_in, c_out, size, image, stride, pad = key
    if name == "bmm":
        return Op("aten.bmm", (_float(b, m, n), _float(b, n, k)), (_float(b, m, k),))
    if name == "linear":
        return Op("aten.addmm", (_float(k), _float(b * m, n), _float(n, k)), (_float(b * m, k),))
    if name == "conv":
        out = (image + 2 * pad - size) // stride + 1
        tensors = _float(b, c_in, image, image), _float(c_out, c_in, size, size)
        attrs = (("stride", (stride, stride)), ("padding", (pad, pad)), ("groups", 1))
        return Op("aten.convolution", tensors, (_float(b, c_out, out, out),), attrs)
    rows = _float(b, h)
    if name == "ln":
        return Op("aten.native_layer_norm", (rows, _float(h), _float(h)), (rows, _float(b)))
    if name in BINARY:
        return Op(BINARY[name], (rows, rows), (rows,))
    return Op(UNARY[name], (rows,), (rows,))


def _float(*shape: int) -> TensorSpec:
    return TensorSpec(tuple(map(int, shape)), "float32")


def cases(measured: Runs, gpus: Iterable[str]) -> list[WaveCase]:
    """Every call that two of these GPUs ran, scaled in both directions."""
    chosen, wave_cases = set(gpus), []
    for key, by_gpu in measured.items():
        op = op_of(key)
        kind, intensity = ops.kind(op), work_of(op).intensity
        for origin, target in permutations(sorted(chosen & by_gpu.keys()), 2):
            kernel, target_s = by_gpu[origin].kernel, by_gpu[target].kernel.seconds
            wave_cases.append(WaveCase(key[0], kind, intensity, origin, target, kernel, target_s))
    return wave_cases


# Errors.


def error(chosen: Sequence[WaveCase], method: Method) -> float:
    """The mean error of the ratio over cases, in percent."""
    predicted = np.array([method(case) for case in chosen])
    return float(np.mean(np.abs(predicted / _real(chosen) - 1)) * 100)


def _real(chosen: Sequence[WaveCase]) -> Any:
    return np.array([case.target_s / case.kernel.seconds for case in chosen])


def table(
    title: str,
    groups: Mapping[str, Sequence[WaveCase]],
    methods: Mapping[str, Method] = METHODS,
) -> None:
    """Print a table with a line for each group, and one for all."""
    print("", *heading(f"{title} | calls | {' | '.join(methods)}"), sep="\n")
    everything = [case for group in groups.values() for case in group]
    for name, group in {**groups, "all": everything}.items():
        errors = (f"{error(group, method):.1f}" for method in methods.values())
        print(f"| {name} | {len(group)} | " + " | ".join(errors) + " |", flush=True)


def grouped(
    chosen: Iterable[WaveCase], key: Callable[[WaveCase], str]
) -> dict[str, list[WaveCase]]:
    """The cases by a key, sorted by it."""
    groups: dict[str, list[WaveCase]] = defaultdict(list)
    for case in chosen:
        groups[key(case)].append(case)
    return dict(sorted(groups.items()))


def coverage(chosen: Sequence[WaveCase]) -> float:
    """The share of cases whose measured ratio lies within the library's range."""
    inside = 0
    for case in chosen:
        scaled = scale(case.kernel, *case.devices, case.intensity, case.kind)
        real = case.target_s / case.kernel.seconds
        inside += scaled is not None and scaled.low <= real <= scaled.high
    return inside / len(chosen)


# Kernels of one wave.


def one_wave(measured: Runs, folder: Path) -> list[WaveCase]:
    """Cases whose kernel is the same on both GPUs and fits in one wave on each."""
    candidates = [*_same_gemms(measured), *_vidur(folder / "kernels" / "vidur_ops.parquet")]
    chosen = []
    for case in candidates:
        waves = [
            (kernel_blocks_per_sm(device, case.kernel) or 0) * (device.sm_count or 0)
            for device in case.devices
        ]
        if 0 < (case.kernel.blocks or 0) <= min(waves):
            chosen.append(case)
    return chosen


def _same_gemms(measured: Runs) -> Iterator[WaveCase]:
    """Contractions that ran the same kernel on both GPUs, for much longer than a launch."""
    floors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for by_gpu in measured.values():
        for run in by_gpu.values():
            floors[run.op, run.gpu].append(run.kernel.seconds)
    least_s = {key: 2 * float(np.quantile(seconds, 0.01)) for key, seconds in floors.items()}
    for key, by_gpu in measured.items():
        if key[0] not in CONTRACTED:
            continue
        for origin, target in permutations(sorted(set(NVIDIA) & by_gpu.keys()), 2):
            pair = by_gpu[origin], by_gpu[target]
            launches = {(run.kernel.name, run.kernel.grid) for run in pair}
            if len(launches) == 1 and all(
                run.kernels <= 2 and run.kernel.seconds > least_s[run.op, run.gpu] for run in pair
            ):
                kernel = replace(pair[0].kernel, registers=SGEMM_REGISTERS)
                yield WaveCase(key[0], None, None, origin, target, kernel, pair[1].kernel.seconds)


def _vidur(path: Path) -> Iterator[WaveCase]:
    """Kernel times of vidur's inference runs.

    The times are in whole microseconds, so those below 3 us are left out. Launch configurations
    are those of PyTorch's add and of vLLM's norm and activation, which use one block of up to 1024
    threads per token.
    """
    if not path.is_file():
        return
    launches: Mapping[str, Callable[[Any], tuple[int, int]]] = {
        "add": lambda row: (-(-row.num_tokens * row.hidden // 512), 128),
        "input_layernorm": lambda row: (row.num_tokens, 1024),
        "mlp_act": lambda row: (row.num_tokens, 1024),
    }
    keys = ["op", "num_tokens", "hidden", "ffn_hidden", "tp", "model"]
    rows = _read(path, [*keys, "gpu", "latency_ms"])
    medians = rows.groupby([*keys, "gpu"]).latency_ms.median().unstack("gpu").dropna()
    for row in medians.reset_index().itertuples(index=False):
        if row.op in launches and min(row.a40, row.a100) >= 0.003:
            blocks, threads = launches[row.op](row)
            seconds = {"a40": row.a40 / 1e3, "a100": row.a100 / 1e3}
            for origin, target in permutations(seconds):
                kernel = Kernel(row.op, seconds[origin], (blocks, 1, 1), (threads, 1, 1), 32, 0)
                yield WaveCase(
                    f"vidur {row.op}", None, None, origin, target, kernel, seconds[target]
                )


def clocks(case: WaveCase) -> float:
    """The ratio of clock rates."""
    origin, target = (_sheet(device) for device in case.devices)
    return origin.clock_hz / target.clock_hz


def with_peaks(case: WaveCase) -> float:
    """Eq. 2 with the ratio of peak FLOP/s in place of the ratios of waves and clocks."""
    scaled = scale(case.kernel, *case.devices, case.intensity, case.kind)
    if scaled is None or scaled.gamma is None:
        return 1.0
    return float(bandwidths(case) ** scaled.gamma * peaks(case) ** (1 - scaled.gamma))


def main(given: Sequence[str] = ()) -> None:
    """Print all tables."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, "neusight", "kernels")
    folder = parser.parse_args(given).data
    measured = runs(folder)
    everything = cases(measured, NVIDIA)
    alike = [case for case in everything if case.kind not in CONTRACTIONS]
    contracted = [case for case in everything if case.kind in CONTRACTIONS]
    print(f"mean |predicted / measured - 1|, %; Habitat's wave-scaled operations: {PAPER}")
    for title, chosen in (("above 0.2 ms", _above(alike)), ("any length", alike)):
        table(f"op, {title}", grouped(chosen, lambda case: case.op))
    table("pair, above 0.2 ms", grouped(_above(alike), _pair))
    amd = _above(cases(measured, IDS))
    amd = [c for c in amd if "MI100" in (c.origin, c.target) and c.kind not in CONTRACTIONS]
    table("to and from the MI100", grouped(amd, _pair))
    table(
        "contraction, above 0.2 ms",
        grouped(_above(contracted), lambda case: case.op),
        {**METHODS, "Eq. 2 with peaks": with_peaks},
    )
    constants = {f"gamma = {g:g}": partial(at_gamma, g) for g in (0.0, 0.25, 0.5, 1.0)}
    table(
        "contraction, shape unknown",
        grouped(_above(contracted), lambda case: case.op),
        {"as shipped": lambda case: by_op(replace(case, intensity=None)), **constants},
    )
    few = one_wave(measured, folder)
    table(
        "one wave on both GPUs",
        grouped(few, lambda case: case.op),
        {"unchanged": lambda _: 1.0, "clocks": clocks, **constants},
    )
    print(*heading("ops | measured within the range"), sep="\n")
    for name, chosen in {
        "elementwise": [c for c in _above(alike) if c.kind is Kind.ELEMENTWISE],
        "layer norm, softmax": [c for c in _above(alike) if c.kind is not Kind.ELEMENTWISE],
        "contractions": _above(contracted),
        "contractions of unknown shape": [replace(c, intensity=None) for c in _above(contracted)],
        "one wave": few,
    }.items():
        print(f"| {name} | {coverage(chosen):.0%} |")


def _above(chosen: Iterable[WaveCase]) -> list[WaveCase]:
    return [case for case in chosen if case.above_floor]


def _pair(case: WaveCase) -> str:
    return f"{case.origin} to {case.target}"
