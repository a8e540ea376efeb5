"""Published steps scaled from a measurement: recorded on our H200, predicted on the GPUs of others.

The recordings are those of `lab.collect.scaled`. A step's kernels are scaled, not its host: on the
other machine the host is as unknown as to the contenders that start from nothing, so that it is
the reference host here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lab.measured import campaigns
from lab.measured.comparison import Contender, Scored, groups, summary
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
"""Share of the traced launches that a recording must have, and the reverse."""


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
        f"Scaled from a measurement, and from nothing, on the same steps: {len(cases)} whose "
        "step we recorded on an H200 (`lab.collect.scaled`). Kernels are scaled to the GPU of the "
        "case, never the H200 itself; the host is the reference host for all. `scaled` is what "
        "`wavecast.predict` does with a measured trace. Its ratios are those of `learned`, in "
        f"`{LEFT_OUT}` those of models that have not seen the GPU's chip; `{WAVES}` needs none. "
        "None of the three knows that old libraries were slower, as `learned` does here.",
        "",
        "| set, predictor | steps | mean | median | bias | worst | in range |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    same = [row for row in rows if row.case in cases]
    order = list(dict.fromkeys(row.contender for row in same))
    for name, group in groups(same, lambda row: row.case.set):
        for contender in order:
            found = summary([row for row in group if row.contender == contender])
            lines.append(
                f"| {name}, {contender} | {found.count} | {found.mean:.0%} | {found.median:.0%} "
                f"| {found.bias:+.0%} | {found.worst:.0%} | {found.within:.0%} |"
            )
    return "\n".join(lines)
