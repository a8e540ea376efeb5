"""A check of this machine: is everything that Wavecast needs installed and working?"""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from wavecast.errors import MissingExtra, WavecastError, needing_extra
from wavecast.files import cache_folder, config_folder, data_folder
from wavecast.footprint.memory import memory
from wavecast.frameworks.pytorch.huggingface.configs import REMEDY, torchvision_fault
from wavecast.hardware.clusters import cluster
from wavecast.hardware.devices import device, devices
from wavecast.hardware.kept_hosts import kept_hosts
from wavecast.ops.costs import cost_of
from wavecast.planning.prices import STALE_DAYS, price_book, today
from wavecast.predictors.collectives import Collectives
from wavecast.predictors.wave import Waves, gamma, wave_ratio
from wavecast.steps.request import predict
from wavecast.traces.step import Op, Phase, TensorSpec

OLDEST_TORCH, NEWEST_TORCH = (2, 9), (2, 15)
"""The versions of torch with which tracing was tried (docs/compatibility.md)."""
OLDEST_PYTHON = (3, 11)


class State(StrEnum):
    """The result of a check."""

    GOOD = "good"
    ABSENT = "not there"
    """It is not there, and most people do not need it."""
    DOUBTFUL = "look at it"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    what: str
    state: State
    found: str
    """What was found."""
    advice: str = ""
    """What to do; empty if nothing needs to be done."""


def examine(version: str, *, deep: bool = False) -> tuple[Finding, ...]:
    """The findings on this machine; `deep` also computes figures that are known from elsewhere."""
    looks = (*_LOOKS, _figures) if deep else _LOOKS
    return tuple(finding for look in looks for finding in _looked(look, version))


def is_broken(findings: tuple[Finding, ...]) -> bool:
    """Whether something must be repaired before Wavecast works."""
    return any(finding.state is State.BROKEN for finding in findings)


def _looked(look: Callable[[str], Iterator[Finding]], version: str) -> Iterator[Finding]:
    try:
        yield from look(version)
    except WavecastError as error:
        yield Finding(look.__name__.strip("_"), State.BROKEN, str(error), "mend or remove the file")
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        yield Finding(look.__name__.strip("_"), State.BROKEN, said, "reinstall what it names")


def _figures(version: str) -> Iterator[Finding]:
    try:
        for figure in known_figures():
            state = State.GOOD if figure.holds else State.BROKEN
            shown = f"{figure.found:.6g}, known {figure.known} ({figure.source})"
            advice = "" if figure.holds else "install Wavecast again, and tell its developers"
            yield Finding(figure.what, state, shown, advice)
    except MissingExtra as error:
        yield Finding("figures of models", State.ABSENT, "not computed", str(error))


def _python(version: str) -> Iterator[Finding]:
    shown = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield Finding("Python", State.BROKEN, shown, f"use Python {oldest} or later")
    else:
        yield Finding("Python", State.GOOD, shown)
    yield Finding("Wavecast", State.GOOD, f"{version} ({Path(__file__).parent})")


def _torch(version: str) -> Iterator[Finding]:
    try:
        from wavecast.frameworks.pytorch import installation
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        advice = "to trace and measure steps: pip install 'wavecast[torch]'"
        yield Finding("torch", State.ABSENT, "not installed", advice)
        return
    torch = installation.torch_installation()
    build = f"CUDA {torch.cuda}" if torch.cuda else "for the CPU"
    yield _version_of_torch(torch.version, f"{torch.version} ({build})")
    yield _gpus(torch.gpus, torch.cuda)
    if torch.conflicts:
        yield Finding(
            "libraries",
            State.DOUBTFUL,
            f"loaded twice: {'; '.join(torch.conflicts)}",
            "remove one of the copies, or take its folder out of LD_LIBRARY_PATH",
        )
    else:
        yield Finding("libraries", State.GOOD, "none is loaded twice")
    problem = installation.tracing_problem()
    if problem is None:
        yield Finding("tracing", State.GOOD, "a small step was traced")
    else:
        yield Finding("tracing", State.BROKEN, problem, "install a version of torch that was tried")


def _version_of_torch(version: str, shown: str) -> Finding:
    pair = _numbers(version)[:2]
    tried = f"{_dotted(OLDEST_TORCH)} to {_dotted(NEWEST_TORCH)}"
    if pair < OLDEST_TORCH:
        advice = f"Wavecast needs torch {_dotted(OLDEST_TORCH)} or later"
        return Finding("torch", State.BROKEN, shown, advice)
    if pair > NEWEST_TORCH:
        advice = f"tried were {tried}; if tracing fails, take one of these"
        return Finding("torch", State.DOUBTFUL, shown, advice)
    return Finding("torch", State.GOOD, shown)


def _gpus(names: tuple[str, ...], cuda: str | None) -> Finding:
    """Whether torch sees a GPU, where there is one."""
    if names:
        unknown = [name for name in names if not _is_known(name)]
        said = ", ".join(dict.fromkeys(names))
        if unknown:
            advice = f"{unknown[0]} is not known; docs/howto/add-a-gpu.md says how to describe it"
            return Finding("GPU", State.DOUBTFUL, said, advice)
        return Finding("GPU", State.GOOD, said)
    if shutil.which("nvidia-smi") is None:
        advice = "predictions need none; wavecast measure and calibrate do"
        return Finding("GPU", State.ABSENT, "none", advice)
    if cuda is None:
        advice = "torch was built for the CPU; install a CUDA build to measure on this GPU"
    else:
        advice = f"torch was built with CUDA {cuda} and sees no GPU; update the driver (nvidia-smi)"
    return Finding("GPU", State.DOUBTFUL, "nvidia-smi is there, but torch sees no GPU", advice)


def _is_known(name: str) -> bool:
    try:
        device(name)
    except WavecastError:
        return False
    return True


def _extras(version: str) -> Iterator[Finding]:
    for extra, needed in sorted(_needs().items()):
        missing = [text for name, text in needed.items() if not _is_there(name, text)]
        what = f"extra {extra}"
        if not missing:
            yield Finding(what, State.GOOD, ", ".join(map(_installed, needed)))
        else:
            said = f"missing: {', '.join(missing)}"
            yield Finding(what, State.ABSENT, said, f"pip install 'wavecast[{extra}]'")


def _needs() -> dict[str, dict[str, str]]:
    try:
        lines = metadata.requires("wavecast") or []
    except metadata.PackageNotFoundError:  # run from its source
        return {}
    extras: dict[str, dict[str, str]] = {}
    for line in lines:
        requirement, _, condition = line.partition(";")
        if match := re.search(r"extra == [\"'](\w+)[\"']", condition):
            name = re.split(r"[\[<>=!~ ]", requirement.strip())[0]
            extras.setdefault(match[1], {})[name] = requirement.strip()
    return extras


def _is_there(name: str, requirement: str) -> bool:
    """Whether a package is installed in a version that is new enough."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    least = re.search(r">=([\d.]+)", requirement)
    return least is None or _numbers(version) >= _numbers(least[1])


def _installed(name: str) -> str:
    return f"{name} {metadata.version(name)}"


def _torchvision(version: str) -> Iterator[Finding]:
    """Whether torchvision suits torch; if not, what imports it breaks, such as transformers."""
    fault = torchvision_fault()
    if fault is not None:
        yield Finding("torchvision", State.DOUBTFUL, fault, REMEDY)


def _hosts(version: str) -> Iterator[Finding]:
    hosts = kept_hosts()
    if hosts:
        names = ", ".join(f"{host.name} ({host.file.date})" for host in hosts)
        yield Finding("calibrated hosts", State.GOOD, names)
    else:
        advice = "wavecast calibrate measures this one; else a cloud VM is assumed"
        yield Finding("calibrated hosts", State.ABSENT, "none", advice)


def _devices(version: str) -> Iterator[Finding]:
    yield Finding("GPUs known", State.GOOD, str(len(devices())))


def _prices(version: str) -> Iterator[Finding]:
    book = price_book()
    days = (today() - book.date).days
    dated = f"of {book.date}, {days} days old"
    if days > STALE_DAYS:
        advice = "prices change: wavecast prices update, or give your own"
        yield Finding("prices", State.DOUBTFUL, dated, advice)
    else:
        yield Finding("prices", State.GOOD, dated)


def _store(version: str) -> Iterator[Finding]:
    try:
        from wavecast.runs.store.database import default_place
        from wavecast.runs.store.store import RunStore

        place = os.environ.get("WAVECAST_RUNS") or str(default_place())
        if "://" not in place and not Path(place).expanduser().exists():
            advice = "wavecast runs add makes it"
            yield Finding("run store", State.ABSENT, f"{place} does not exist yet", advice)
            return
        with RunStore(read_only=True) as store:
            yield Finding("run store", State.GOOD, f"{store.name}: {store.count()} runs")
    except (MissingExtra, ModuleNotFoundError):
        advice = "pip install 'wavecast[runs]'"
        yield Finding("run store", State.ABSENT, "it needs SQLAlchemy", advice)
    except WavecastError as error:
        advice = "check WAVECAST_RUNS, and that the database answers"
        yield Finding("run store", State.BROKEN, str(error), advice)


def _folders(version: str) -> Iterator[Finding]:
    for what, folder in (
        ("settings", config_folder()),
        ("runs", data_folder()),
        ("cache", cache_folder()),
    ):
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(nearest, os.W_OK):
            advice = f"make {nearest} writable, or set XDG_{_VARIABLES[what]}_HOME"
            yield Finding(f"folder of {what}", State.DOUBTFUL, f"{folder} is read-only", advice)


_VARIABLES = {"settings": "CONFIG", "runs": "DATA", "cache": "CACHE"}


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, up to the first part that has none."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


_LOOKS: tuple[Callable[[str], Iterator[Finding]], ...] = (
    *(_python, _torch, _torchvision, _extras),
    *(_devices, _hosts, _prices, _store, _folders),
)


# Figures that are known from elsewhere, each with a source, computed again here. If one is off, the
# installation is damaged, or a library computes something else than it did.


@dataclass(frozen=True)
class KnownFigure:
    """A figure as it is known, and as it comes out here."""

    what: str
    low: float
    high: float
    """The figure lies between these; they are equal for one that is exact."""
    found: float
    source: str

    @property
    def holds(self) -> bool:
        """Whether the figure computed here is the known one."""
        slack = 1e-9 * max(abs(self.low), abs(self.high))
        return self.low - slack <= self.found <= self.high + slack

    @property
    def known(self) -> str:
        """What is known, in words."""
        low, high = f"{self.low:.6g}", f"{self.high:.6g}"
        return low if low == high else f"{low} to {high}"


def _exact(what: str, known: float, computed: float, source: str) -> KnownFigure:
    return KnownFigure(what, known, known, computed, source)


def known_figures() -> Iterator[KnownFigure]:
    """All figures, the quick ones first. Those of torch raise MissingExtra without it."""
    for figures in (_ops, _equations, _links, _models):
        yield from figures()


def _ops() -> Iterator[KnownFigure]:
    rows, inner, columns = 512, 1024, 4096
    yield _exact(
        "FLOPs of a matmul",
        2 * rows * inner * columns,
        _flops("aten.mm", (rows, inner), (inner, columns), out=(rows, columns)),
        "2 m n k",
    )
    yield _exact(
        "FLOPs of a convolution",
        2 * 8 * 64 * 56 * 56 * 32 * 3 * 3,
        _flops(
            "aten.convolution",
            *((8, 32, 56, 56), (64, 32, 3, 3)),
            out=(8, 64, 56, 56),
            attrs=(("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("groups", 1)),
        ),
        "2 N K P Q C R S",
    )
    heads, tokens, width = 16, 1024, 64
    yield _exact(
        "FLOPs of attention",
        4 * 2 * heads * tokens**2 * width,
        _flops(
            "aten._scaled_dot_product_flash_attention",
            *((2, heads, tokens, width),) * 3,
            out=(2, heads, tokens, width),
        ),
        "4 b h s s d, two matmuls",
    )


def _flops(
    name: str,
    *inputs: tuple[int, ...],
    out: tuple[int, ...],
    attrs: tuple[tuple[str, object], ...] = (),
) -> float:
    specs = tuple(TensorSpec(shape, "float16") for shape in inputs)
    cost = cost_of(Op(name, specs, (TensorSpec(out, "float16"),), attrs))  # type: ignore[arg-type]
    return math.nan if cost is None else cost.flops


def _equations() -> Iterator[KnownFigure]:
    # Half of the bandwidth and a quarter of the wave, gamma one half: sqrt(2 * 4).
    origin, target = Waves(400, 800e9, 1e9), Waves(100, 400e9, 1e9)
    ratio = wave_ratio(origin, target, 0.5)
    yield _exact("wave scaling", math.sqrt(8), ratio, "Habitat, Eq. 2")
    yield _exact("gamma at the ridge", 0.5, gamma(10.0, 10.0), "Habitat, Eq. 3")


def _links() -> Iterator[KnownFigure]:
    ranks, size = 8, 1 << 30
    spec = TensorSpec((size // 4,), "float32")
    op = Op("nccl.all_reduce", (spec,), (spec,), (("ranks", ranks), ("stride", 1)))
    estimate = Collectives.shipped().predict(op, cluster("dgx-h100"), device("h100-sxm-80gb"))
    seconds = math.nan if estimate is None else estimate.seconds
    # On such a machine nccl-tests show a bus bandwidth of 370 GB/s with rings, 480 with NVLS.
    moved = 2 * (ranks - 1) / ranks * size
    yield KnownFigure(
        "all-reduce of 1 GiB on 8 H100s, s", moved / 500e9, moved / 300e9, seconds, "nccl-tests"
    )


def _models() -> Iterator[KnownFigure]:
    batch = 64
    with needing_extra("tracing the model of a known figure"):
        from wavecast.suite import benchmark
        from wavecast.targets.sources import trace

        step = trace(lambda: benchmark("resnet50").make_step(batch, "bf16"))
    kinds = memory(step, "a100-pcie-40gb").by_kind
    momentum = kinds["optimizer state"] or math.nan
    yield _exact("ResNet-50's parameters", 25_557_032, momentum / 4, "torchvision's ResNet-50")
    costs = (cost_of(call.op) for call in step.calls if call.phase is Phase.FORWARD)
    flops = sum(cost.flops for cost in costs if cost is not None) / batch
    yield KnownFigure(
        "ResNet-50's forward FLOPs",
        *(2 * 4.09e9, 2 * 4.20e9),
        flops,
        "torchvision: 4.09 G multiply-adds",
    )
    yield KnownFigure(
        "its weights and buffers, bytes",
        4 * 25_557_032,
        4 * 25_557_032 * 1.01,
        kinds["weights"] or math.nan,
        "4 bytes for each",
    )
    published = 1116.84
    yield KnownFigure(
        "its images/s on an A100",
        *(published / 1.3, published * 1.3),
        batch / predict(step, "a100-pcie-40gb", host="reference").seconds,
        "Lambda's 1,117 with AMP, within 30%",
    )
