"""The baseline: the figures of checked steps in a file that is committed and reviewed.

Numbers are rounded, parts without GPU time are left out, and everything has a fixed order. So equal
steps give equal files on every machine, and a changed step changes the lines that are about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wavecast.analysis.comparison import NO_KIND, StepSummary
from wavecast.errors import InvalidInput
from wavecast.files import read_toml, toml_text, write_checked
from wavecast.hardware.fact_files import refuse_unknown, table_of, text_of
from wavecast.ops.registry import kind_of
from wavecast.steps.prediction import Share

FORMAT = 1
_DIGITS = 5
"""How many digits of a time are kept."""
_MIB = 1 << 20
_HEAD = (
    'The predicted figures of training steps, written by "wavecast check --update".',
    "Commit this file: a review then shows what a change costs. Do not edit it by hand.",
)
_KEYS = ("format", "host", "software", "usd_per_hour", "steps")
_STEP_KEYS = (
    *("step_ms", "gpu_ms", "host_ms", "bound_by", "peak_mib", "needed_mib", "fits"),
    *(
        "kernels",
        "waits",
        "samples",
        "unit",
        "unpredicted",
        "ops_hash",
        "memory",
        "types",
        "ops",
        "modules",
    ),
)


@dataclass(frozen=True)
class Baseline:
    """The kept figures of steps, and with which software they were predicted."""

    steps: Mapping[str, Mapping[str, StepSummary]]
    """The steps by target and GPU."""
    software: Mapping[str, str] = field(default_factory=dict)
    """The versions of Wavecast and of the libraries that shape a step, by name."""
    host: str = ""
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    """The price of each GPU, by which the cheapest one is chosen."""


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
    try:
        table = read_toml(path)
        refuse_unknown(table, _KEYS, "a baseline")
        if table.get("format") != FORMAT:
            raise InvalidInput(
                f"its format is {table.get('format')!r}, and this version of Wavecast reads "
                f"{FORMAT}; write it anew with wavecast check --update"
            )
        software = table_of(table, "software")
        return Baseline(
            steps={
                target: {
                    gpu: _step(table_of(gpus, gpu), gpu, f"steps.{target}.{gpu}") for gpu in gpus
                }
                for target, gpus in _tables(table, "steps")
            },
            software={name: text_of(software, name) for name in software},
            host=text_of(table, "host"),
            usd_per_hour={
                gpu: _number(price, f"usd_per_hour.{gpu}")
                for gpu, price in table_of(table, "usd_per_hour").items()
            },
        )
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def _tables(table: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    inner = table_of(table, key)
    for name in inner:
        yield name, table_of(inner, name)


def _step(table: Mapping[str, Any], gpu: str, where: str) -> StepSummary:
    refuse_unknown(table, _STEP_KEYS, "a step of a baseline", f"{where}.")

    def number(key: str) -> float:
        return _number(table.get(key), f"{where}.{key}")

    def text(key: str) -> str:
        value = table.get(key)
        if not isinstance(value, str):
            raise InvalidInput(f"{where}.{key} must be a text in quotes, not {value!r}")
        return value

    def size(key: str) -> int | None:
        return round(number(key)) * _MIB if key in table else None

    if not number("step_ms"):
        raise InvalidInput(f"{where}.step_ms is 0, and no step takes no time")
    fits = table.get("fits")
    if fits is not None and not isinstance(fits, bool):
        raise InvalidInput(f"{where}.fits must be true or false, not {fits!r}")
    ops = _parts(table, "ops", where)
    return StepSummary(
        gpu=gpu,
        seconds=_rounded(number("step_ms") / 1e3),
        gpu_s=_rounded(number("gpu_ms") / 1e3),
        host_s=_rounded(number("host_ms") / 1e3),
        bound_by=text("bound_by"),
        kernels=int(number("kernels")),
        syncs=int(number("waits")),
        needed_bytes=size("needed_mib"),
        peak_bytes=size("peak_mib"),
        fits=fits,
        samples=int(number("samples")) if "samples" in table else None,
        unit=text("unit") if "unit" in table else "samples",
        unpredicted_share=number("unpredicted") if "unpredicted" in table else 0.0,
        fingerprint=text("ops_hash"),
        kinds=_kinds_of(ops),
        types=_parts(table, "types", where),
        ops=ops,
        modules=_parts(table, "modules", where),
        memory={
            kind: round(_number(mib, f"{where}.memory.{kind}")) * _MIB
            for kind, mib in table_of(table, "memory").items()
        },
    )


def _parts(table: Mapping[str, Any], key: str, where: str) -> tuple[Share, ...]:
    parts = []
    for name, part in _tables(table, key):
        refuse_unknown(part, ("calls", "gpu_ms"), "a part of a step", f"{where}.{key}.{name}.")
        calls, gpu_ms = (
            _number(part.get(each), f"{where}.{key}.{name}.{each}") for each in ("calls", "gpu_ms")
        )
        parts.append(Share(name, int(calls), _rounded_part(gpu_ms / 1e3)))
    return tuple(parts)


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise InvalidInput(f"{where} must be a number of at least 0, not {value!r}")
    return value
