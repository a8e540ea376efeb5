"""The baseline: the figures of checked steps in a file that is committed and reviewed.

Numbers are rounded, parts without GPU time are left out, and everything has a fixed order. So equal
steps give equal files on every machine, and a changed step changes the lines that are about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from wavecast.analysis.comparison import NO_KIND, StepSummary
from wavecast.errors import InvalidInput, prefixed
from wavecast.files import read_toml, toml_text, write_checked
from wavecast.ops.registry import kind_of
from wavecast.reading import (
    a_table,
    any_text,
    expected,
    is_number,
    read_record,
    table_of,
    text_of,
)
from wavecast.steps.prediction import Share

FORMAT = 1
_DIGITS = 5
"""How many digits of a time are kept."""
_MIB = 1 << 20
_HEAD = (
    'The predicted figures of training steps, written by "wavecast check --update".',
    "Commit this file: a review then shows what a change costs. Do not edit it by hand.",
)


@dataclass(frozen=True)
class Baseline:
    """The kept figures of steps, and with which software they were predicted."""

    steps: Mapping[str, Mapping[str, StepSummary]]
    """The steps by target and GPU."""
    software: Mapping[str, str] = field(default_factory=dict)
    """The versions of Wavecast and of the libraries that shape a step, by name."""
    host: str = ""
    usd_per_hour: Mapping[str, Annotated[float, _amount]] = field(default_factory=dict)
    """The price of each GPU, by which the cheapest one is chosen."""


_amount = expected(lambda value: is_number(value) and 0 <= value < 1e18, "a number of at least 0")


def _amount_above_0(value: Any, where: str) -> float:
    if not _amount(value, where):
        raise InvalidInput(f"{where} is 0, and no step takes no time")
    return float(value)


def kept(step: StepSummary) -> StepSummary:
    """A step as a baseline keeps it: rounded, and without parts that take no time."""
    return replace(
        step,
        seconds=_rounded(step.seconds),
        gpu_s=_rounded(step.gpu_s),
        host_s=_rounded(step.host_s),
        needed_bytes=_whole_mib(step.needed_bytes),
        peak_bytes=_whole_mib(step.peak_bytes),
        low_s=None,
        high_s=None,
        unit=step.unit if step.samples is not None else "samples",
        unpredicted_share=round(step.unpredicted_share, 4),
        framework="",
        ops=_kept_parts(step.ops),
        modules=_kept_parts(step.modules),
        types=_kept_parts(step.types),
        kinds=_kinds_of(_kept_parts(step.ops)),
        memory={kind: size for kind, n in sorted(step.memory.items()) if (size := _whole_mib(n))},
        notes=(),
    )


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{_DIGITS}g}")


def _rounded_part(seconds: float) -> float:
    """The time of a part: to 10 ns, and with no more digits than the file has."""
    return round(float(f"{seconds:.{_DIGITS + 3}g}"), 8)


def _whole_mib(nbytes: int | None) -> int | None:
    return None if nbytes is None else round(nbytes / _MIB) * _MIB


def _kept_parts(parts: Sequence[Share]) -> tuple[Share, ...]:
    """The parts that take time, by name: an order that does not depend on the times."""
    rounded = (replace(part, gpu_s=_rounded_part(part.gpu_s)) for part in parts)
    return tuple(sorted((part for part in rounded if part.gpu_s), key=lambda part: part.name))


def _kinds_of(parts: Sequence[Share]) -> tuple[Share, ...]:
    """The kinds of ops, from the ops."""
    kinds: dict[str, Share] = {}
    for part in parts:
        kind = str(kind_of(part.name) or NO_KIND)
        so_far = kinds.get(kind, Share(kind, 0, 0.0))
        kinds[kind] = Share(kind, so_far.calls + part.calls, so_far.gpu_s + part.gpu_s)
    return tuple(sorted(kinds.values(), key=lambda part: part.name))


def write_baseline(baseline: Baseline, path: Path) -> None:
    """Write a baseline, all or nothing.

    Raises:
        InvalidInput: the file cannot be written.
    """
    write_checked(path, to_toml(baseline), read_baseline)


def to_toml(baseline: Baseline) -> str:
    """The text of a baseline's file."""
    return toml_text(
        {
            "format": FORMAT,
            "host": baseline.host,
            "software": dict(sorted(baseline.software.items())) or None,
            "usd_per_hour": dict(sorted(baseline.usd_per_hour.items())) or None,
            "steps": {
                target: {gpu: _step_table(kept(step)) for gpu, step in sorted(steps.items())}
                for target, steps in sorted(baseline.steps.items())
            },
        },
        _HEAD,
    )


@dataclass(frozen=True)
class _KeptPart:
    """A type, an op or a module of a step as the file has it."""

    calls: Annotated[float, _amount]
    gpu_ms: Annotated[float, _amount]


def _kept_part(table: Any, where: str) -> _KeptPart:
    return read_record(_KeptPart, table, "a part of a step", f"{where}.")


_Parts = Mapping[str, Annotated[_KeptPart, _kept_part]]


@dataclass(frozen=True)
class _KeptStep:
    """A step as the file has it."""

    step_ms: Annotated[float, _amount_above_0]
    gpu_ms: Annotated[float, _amount]
    host_ms: Annotated[float, _amount]
    bound_by: Annotated[str, any_text]
    kernels: Annotated[float, _amount]
    waits: Annotated[float, _amount]
    ops_hash: Annotated[str, any_text]
    peak_mib: Annotated[float | None, _amount] = None
    needed_mib: Annotated[float | None, _amount] = None
    fits: bool | None = None
    samples: Annotated[float | None, _amount] = None
    unit: Annotated[str, any_text] = "samples"
    unpredicted: Annotated[float, _amount] = 0.0
    memory: Mapping[str, Annotated[float, _amount]] = field(default_factory=dict)
    types: _Parts = field(default_factory=dict)
    ops: _Parts = field(default_factory=dict)
    modules: _Parts = field(default_factory=dict)


def _step_table(step: StepSummary) -> dict[str, Any]:
    parts = {"types": step.types, "ops": step.ops, "modules": step.modules}
    return {
        "step_ms": _ms(step.seconds),
        "gpu_ms": _ms(step.gpu_s),
        "host_ms": _ms(step.host_s),
        "bound_by": step.bound_by,
        "peak_mib": None if step.peak_bytes is None else step.peak_bytes // _MIB,
        "needed_mib": None if step.needed_bytes is None else step.needed_bytes // _MIB,
        "fits": step.fits,
        "kernels": step.kernels,
        "waits": step.syncs,
        "samples": step.samples,
        "unit": step.unit if step.samples is not None else None,
        "unpredicted": step.unpredicted_share or None,
        "ops_hash": step.fingerprint,
        "memory": {kind: nbytes // _MIB for kind, nbytes in step.memory.items()} or None,
        **{
            name: {part.name: {"calls": part.calls, "gpu_ms": _ms(part.gpu_s)} for part in some}
            for name, some in parts.items()
            if some
        },
    }


def _ms(seconds: float) -> float:
    """A time in milliseconds, without digits that only the conversion adds."""
    return float(f"{seconds * 1e3:.{_DIGITS + 3}g}")


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        InvalidInput: the file cannot be read, or is not a baseline.
    """
    with prefixed(f"{path}: "):
        table = read_toml(path)
        form = table.get("format")
        if form != FORMAT:
            raise InvalidInput(
                f"its format is {form!r}, and this version of Wavecast reads {FORMAT}; write it "
                "anew with wavecast check --update"
            )
        steps = {
            target: {
                gpu: _step(gpu, step, f"steps.{target}.{gpu}")
                for gpu, step in a_table(of_gpus, f"steps.{target}").items()
            }
            for target, of_gpus in table_of(table, "steps").items()
        }
        besides, host = ("format", "steps", "host"), text_of(table, "host")
        return read_record(Baseline, table, "a baseline", besides=besides, steps=steps, host=host)


def _step(gpu: str, table: Any, where: str) -> StepSummary:
    step = read_record(_KeptStep, table, "a step of a baseline", f"{where}.")
    ops, modules, types = (_parts(parts) for parts in (step.ops, step.modules, step.types))
    return StepSummary(
        gpu=gpu,
        seconds=_rounded(step.step_ms / 1e3),
        gpu_s=_rounded(step.gpu_ms / 1e3),
        host_s=_rounded(step.host_ms / 1e3),
        bound_by=step.bound_by,
        kernels=int(step.kernels),
        syncs=int(step.waits),
        needed_bytes=_bytes(step.needed_mib),
        peak_bytes=_bytes(step.peak_mib),
        fits=step.fits,
        samples=None if step.samples is None else int(step.samples),
        unit=step.unit,
        unpredicted_share=step.unpredicted,
        fingerprint=step.ops_hash,
        kinds=_kinds_of(ops),
        types=types,
        ops=ops,
        modules=modules,
        memory={kind: round(mib) * _MIB for kind, mib in step.memory.items()},
    )


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else round(mib) * _MIB


def _parts(parts: Mapping[str, _KeptPart]) -> tuple[Share, ...]:
    return tuple(
        Share(name, int(part.calls), _rounded_part(part.gpu_ms / 1e3))
        for name, part in parts.items()
    )
