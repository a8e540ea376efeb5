"""Published steps that we recorded on our H200, scaled to the GPUs they were published for.

A step's kernels are scaled, but its host is not: the host
of the other machine is as unknown as for predictions without a measurement. So the reference host
is used here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lab.figures import percent
from lab.measured import campaigns
from lab.measured.comparison import Contender, Scored, groups, summary
from lab.measured.public_steps.case import Case, Traces
from lab.pages import heading
from wavecast import Trace, ops
from wavecast.predictors.habitat import Habitat
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.wave import WaveScaling

CAMPAIGN = "scaled"
"""The campaign of the recorded steps; its keys are those of the steps."""
ORIGIN = "h200-sxm"
HOST = "reference"
WAVES, SHIPPED, LEFT_OUT = "scaled by waves", "scaled", "scaled, GPU left out"
NAMES = (WAVES, SHIPPED, LEFT_OUT)
ON_THE_PAGE = ("learned", WAVES, SHIPPED)
"""The contenders that the page has; the whole has all."""
SAME = 0.9
"""A recording must have at least this share of the trace's launches, and the other way round."""


def contenders(fit: Callable[[str], Learned] | None = None) -> list[Contender]:
    """The ways to scale that are compared.

    Args:
        fit: makes models without a GPU's chip; with it, ratios of these models are compared too.
    """
    ways = [
        Contender(WAVES, lambda _: WaveScaling()),
        Contender(SHIPPED, lambda _: Habitat.shipped()),
    ]
    if fit is not None:
        ways.append(Contender(LEFT_OUT, lambda gpu: Habitat(fit(gpu)), leaves_out="gpu"))
    return ways


def recorded(
    traced: Iterable[tuple[Case, Trace]], recordings: Mapping[str, Trace] | None = None
) -> Iterator[tuple[Case, Trace]]:
    """The cases on other GPUs whose step was recorded on ours, with the recording.

    Args:
        traced: cases with their traces made without a GPU.
        recordings: recorded traces by the key of the step; by default those of the campaign.
    """
    recordings = campaigns.traces(CAMPAIGN) if recordings is None else recordings
    decoded: dict[str, Trace] = {}
    for case, trace in traced:
        key = Traces.key(case)
        if case.gpu == ORIGIN or key not in recordings:
            continue
        if key not in decoded:
            decoded = {key: recordings[key]}  # one is enough: cases of a step follow each other
        if is_whole(decoded[key], trace):
            yield case, decoded[key]


def is_whole(recording: Trace, trace: Trace) -> bool:
    """Whether a recording has all ops of the step.

    An iteration whose gradients overflow skips the optimizer's update, for example.
    """
    here, there = _launches(recording), _launches(trace)
    return min(here, there) >= SAME * max(here, there)


def _launches(trace: Trace) -> int:
    return sum(ops.launches(call.op) for call in trace)


def table(rows: Sequence[Scored], *, whole: bool = False) -> str:
    """The errors on the recorded steps by set; the whole has all contenders."""
    cases = {row.case for row in rows if row.contender == SHIPPED}
    if not cases:
        return ""
    lines = [
        "## Scaled from a measurement",
        "",
        f"We recorded {len(cases)} of the published steps on our H200. Here "
        "they are scaled to the GPU of each case, and compared with predictions that use no "
        "measurement of the step. The H200 itself is never a target. All use the reference host. "
        "`scaled` is what `wavecast.predict` does with a measured trace: it scales products, "
        "convolutions and similar ops by ratios of `learned`'s predictions, and other ops by "
        f"waves. `{WAVES}` uses wave scaling and no model. Neither accounts for old libraries, "
        "which were slower; `learned` does.",
        "",
        *heading("set, predictor | steps | mean | median | bias | worst | in range"),
    ]
    same = [row for row in rows if row.case in cases]
    order = [
        contender
        for contender in dict.fromkeys(row.contender for row in same)
        if whole or contender in ON_THE_PAGE
    ]
    for name, group in groups(same, lambda row: row.case.set):
        for contender in order:
            scores = summary([row for row in group if row.contender == contender])
            cells = " | ".join([*scores.cells(), percent(scores.in_range)])
            lines.append(f"| {name}, {contender} | {scores.count} | {cells} |")
    return "\n".join(lines)
