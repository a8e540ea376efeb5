"""Profiles of a step as tables in a terminal: one GPU, or several next to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from wavecast.footprint.kinds import TBD_KINDS
from wavecast.report import text
from wavecast.report.tables import empty
from wavecast.report.units import count, duration, memory, three_digits
from wavecast.steps.profile import KernelShare, Profile

_LONGEST_NAME = 60
_ALL = 0.995


def profiles(title: str, found: Sequence[Profile], kernels: int = 5) -> RenderableType:
    """Everything that is known, a column for each GPU; the first one is what others are held to."""
    shown = empty()
    shown.add_column("", no_wrap=True)
    for each in found:
        shown.add_column(each.device.id, justify="right", no_wrap=True)
        if each is not found[0]:
            shown.add_column(f"/ {found[0].device.id}", justify="right", no_wrap=True)
    for name, cells in _rows(found):
        shown.add_row(name, *cells)
    return Group(
        Text(title, style="bold"),
        "",
        shown,
        "",
        *(Text(line, style="dim") for line in _explanations(found)),
        *text.notes(list(dict.fromkeys(note for each in found for note in each.notes))),
        *(_kernel_table(each, kernels) for each in found),
    )


def _rows(found: Sequence[Profile]) -> Iterable[tuple[str, list[str]]]:
    first = found[0]
    yield "step", _compared([p.seconds for p in found], duration)
    if first.throughput is not None:
        yield f"{first.unit}/s", _compared([p.throughput or 0.0 for p in found], count)
    yield "GPU utilisation", _plain(found, lambda p: f"{p.gpu_utilisation:.0%}")
    for name in ("fp32", "tensor"):
        yield f"{name} utilisation", _pad([_utilisation(p, name) for p in found])
    if any(p.cpu_utilisation is not None for p in found):
        yield "CPU utilisation", _plain(found, lambda p: _percent(p.cpu_utilisation))
    for cause in dict.fromkeys(cause for p in found for cause, s in p.idle_s.items() if s):
        idle = [p.idle_s.get(cause, 0.0) / p.seconds for p in found]
        yield f"idle: {cause}", _pad([f"{share:.1%}" for share in idle])
    for kind in TBD_KINDS:
        if any(p.memory_bytes.get(kind) for p in found):
            yield kind, _pad([_memory(p.memory_bytes.get(kind)) for p in found])


def _compared(values: Sequence[float], shown: Callable[[float], str]) -> list[str]:
    """Each value, and from the second on what it is of the first."""
    first, *others = values
    cells = [shown(first)]
    for value in others:
        cells += [shown(value), three_digits(value / first) if first else "?"]
    return cells


def _plain(found: Sequence[Profile], shown: Callable[[Profile], str]) -> list[str]:
    return _pad([shown(each) for each in found])


def _pad(cells: Sequence[str]) -> list[str]:
    """The cells with an empty one after each but the first, where the ratio would be."""
    first, *others = cells
    return [first, *(part for cell in others for part in (cell, ""))]


def _utilisation(profile: Profile, name: str) -> str:
    """A lower bound where the FLOPs of some kernels are not known."""
    if not profile.known_share:
        return "?"
    at_least = "at least " if profile.known_share < _ALL else ""
    return f"{at_least}{profile.utilisation[name]:.1%}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.1%}"


def _memory(nbytes: int | None) -> str:
    return "?" if nbytes is None else memory(nbytes)


def _explanations(found: Sequence[Profile]) -> Iterable[str]:
    first = found[0]
    made = "measured" if first.measured else f"predicted, issued by the {first.issued_by}"
    yield f"{made}; utilisation of cores is over the time in which the GPU is active"
    if first.counted_share:
        yield f"FLOPs: counted by the hardware for {first.counted_share:.0%} of the GPU's time"
    if first.known_share < _ALL:
        yield f"FLOPs are known for {first.known_share:.0%} of the GPU's time"
    if any(first.memory_bytes.values()):
        unseen = "" if first.memory_bytes["workspace"] else "; workspaces are not known"
        yield f"memory: the most ever allocated of each kind{unseen}"


def _kernel_table(profile: Profile, limit: int) -> RenderableType:
    parts: list[RenderableType] = []
    what = "kernels" if profile.measured else "ops"
    for title, group in (
        (f"longest {what}", profile.kernels[:limit]),
        (f"long {what} below the average utilisation", profile.wasteful(limit)),
    ):
        if group:
            parts += ["", Text(f"{profile.device.id}: {title}", style="bold"), "", _listed(group)]
    return Group(*parts)


def _listed(group: Sequence[KernelShare]) -> RenderableType:
    shown = empty()
    shown.add_column("", overflow="fold")
    for name in ("runs", "time", "share", "utilisation", "FLOP/B", "of roofline", "bound by"):
        shown.add_column(name, justify="right", no_wrap=True)
    for each in group:
        shown.add_row(
            Text(_short(each.name)),
            count(each.runs),
            duration(each.seconds),
            f"{each.share:.1%}",
            _percent(each.utilisation),
            "?" if each.intensity is None else three_digits(each.intensity),
            _percent(each.attained),
            each.bound_by or "?",
        )
    return shown


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
