"""Published steps scaled from a measurement: recorded on our H200, predicted on other GPUs.

The recordings are those of `lab.collect.scaled`. A step's kernels are scaled, but its host is not:
the host of the other machine is as unknown as for predictions that start from nothing. So the
reference host is used here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lab.measured import campaigns
from lab.measured.comparison import Contender, Scored, groups, summary
from lab.measured.figures import percent
from lab.measured.public_steps.case import Case, Traces
from wavecast import Trace, ops
from wavecast.predictors.habitat import Habitat
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.wave import WaveScaling

CAMPAIGN = "scaled"
"""The recorded steps, by the key of the step."""
ORIGIN = "h200-sxm"
HOST = "reference"
WAVES, SHIPPED, LEFT_OUT = "scaled by waves", "scaled", "scaled, GPU left out"
NAMES = (WAVES, SHIPPED, LEFT_OUT)
SAME = 0.9
"""A recording and the trace must agree on this share of their launches."""


def contenders(fit: Callable[[str], Learned] | None = None) -> list[Contender]:
    """Ways to scale.

    Args:
        fit: makes the models of a GPU that is left out; the ratios are theirs then.
    """
    found = [
        Contender(WAVES, lambda _: WaveScaling()),
        Contender(SHIPPED, lambda _: Habitat.shipped()),
    ]
    if fit is not None:
        found.append(Contender(LEFT_OUT, lambda gpu: Habitat(fit(gpu)), leaves_out="gpu"))
    return found


def recorded(
    traced: Iterable[tuple[Case, Trace]], recordings: Mapping[str, Trace] | None = None
) -> Iterator[tuple[Case, Trace]]:
    """The cases of other GPUs whose step was recorded, with the recording.

    Args:
        traced: cases with what was traced of them without a GPU.
        recordings: by the key of the step; the campaign's, unless given.
    """
    recordings = campaigns.traces(CAMPAIGN) if recordings is None else recordings
    known: dict[str, Trace] = {}
    for case, trace in traced:
        key = Traces.key(case)
        if case.gpu == ORIGIN or key not in recordings:
            continue
        if key not in known:
            known = {key: recordings[key]}  # cases of one step follow each other
        if is_whole(known[key], trace):
            yield case, known[key]


def is_whole(recording: Trace, trace: Trace) -> bool:
    """Whether a recording has the ops of the step: one whose gradients overflow has no update."""
    here, there = _launches(recording), _launches(trace)
    return min(here, there) >= SAME * max(here, there)


def _launches(trace: Trace) -> int:
    return sum(ops.launches(call.op) for call in trace)


def table(rows: Sequence[Scored]) -> str:
    """By set, all contenders on the steps that were recorded."""
    cases = {row.case for row in rows if row.contender == SHIPPED}
    if not cases:
        return ""
    lines = [
        "## Scaled from a measurement",
        "",
        f"We recorded {len(cases)} of the published steps on our H200 (`lab.collect.scaled`). Here "
        "they are scaled to the GPU of each case, beside predictions from nothing for the same "
        "steps. The H200 itself is never a target, and the host is the reference host for all. "
        "`scaled` is what `wavecast.predict` does with a measured trace: it uses the ratios of "
        f"`learned`. `{LEFT_OUT}` uses the ratios of models that have not seen the chip, and "
        f"`{WAVES}` uses no model. These three do not know that old libraries were slower, which "
        "`learned` does here.",
        "",
        "| set, predictor | steps | mean | median | bias | worst | in range |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    same = [row for row in rows if row.case in cases]
    order = list(dict.fromkeys(row.contender for row in same))
    for name, group in groups(same, lambda row: row.case.set):
        for contender in order:
            found = summary([row for row in group if row.contender == contender])
            cells = " | ".join([*found.cells(), percent(found.in_range)])
            lines.append(f"| {name}, {contender} | {found.count} | {cells} |")
    return "\n".join(lines)
