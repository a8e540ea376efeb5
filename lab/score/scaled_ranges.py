"""How wide must the range of a measured step be that is scaled to another GPU?

    python -m lab score scaled_ranges --data FOLDER --cache FOLDER [--write]

One width for all kinds is judged as those of traced steps (`lab.score.ranges`), by steps that we
recorded on our H200 and for which others published times (`lab.score.scaled_steps`):

* any `other` GPU: steps scaled by op models that were fitted without the source of the published
  time and without the architecture of the GPU. Of the sources only NeuSight also published ops, so
  its ops are left out for all. (Steps to GPUs of which ops are known gave no narrower ranges.)
* the `same` GPU: steps that were timed again on an H200, in the same process after the recording
  (`same.csv`) or on other machines (`suite-again.csv`).

No model has constants of generations, so these know a little less than those that ship. Only steps
that keep the GPU busy count. Of those timed again that wait for the host, it prints how many lie in
the range of a calibrated host, which they have. GPUs of other vendors have 12 steps, too few for
widths. It writes these classes into models/ranges.toml; the others stay as they are. `--write`
puts the tables into docs/appendix/accuracy-ranges.md and docs/concepts/estimates.md.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import wavecast
from lab import needs, pages
from lab.fit.kept_apart import KeptApart, hidden_for
from lab.measured import campaigns, public_steps
from lab.measured.public_steps.case import Case, Traces
from lab.places import DOCS, H200, MODELS
from lab.score.range_widths import judged, widening
from lab.score.ranged_steps import MARGIN, OffStep, bound, of_prediction
from lab.score.ranges import Ranges, table, widths_table
from lab.score.scaled_steps import CAMPAIGN, HOST, ORIGIN
from wavecast import Prediction, Trace
from wavecast.predictors.base import Familiarity
from wavecast.predictors.habitat import Habitat
from wavecast.steps.ranges import ScaledTo, host_factors, share_by_kind

MARK = "begin: python -m lab score scaled_ranges"
OPS = "neusight"
"""The only source of steps that also published ops."""
VENDOR = wavecast.device(ORIGIN).vendor
AGAIN = {"same.csv": "measured", "suite-again.csv": "suite"}
"""Tables of steps that were timed again, and the campaigns with their recordings."""


def recordings(data: Path) -> Iterator[tuple[Case, Trace]]:
    """The published steps on other NVIDIA GPUs and torch 1.10 or later, with our recordings."""
    recorded = campaigns.traces(CAMPAIGN)
    for case in public_steps.cases(data):
        if case.gpu == ORIGIN or case.old or wavecast.device(case.gpu).vendor != VENDOR:
            continue
        if Traces.key(case) in recorded:
            yield case, recorded[Traces.key(case)]


def published(pairs: Iterable[tuple[Case, Trace]], apart: KeptApart) -> Iterator[OffStep]:
    """The steps that keep the GPU busy, scaled by op models that know neither GPU nor source."""
    for case, trace in pairs:
        hidden = replace(hidden_for(case, Familiarity.UNSEEN), owner=OPS)
        scaler = Habitat(apart.ops(hidden, chips=False))
        prediction = wavecast.predict(trace, case.gpu, predictor=scaler, host=HOST)
        step = bound(prediction, case, Familiarity.UNSEEN)
        if step is not None and step.part == "gpu":
            by_kind = share_by_kind([timed for timed, _ in prediction.runs])
            yield replace(step, part="scaled", known=str(ScaledTo.OTHER), modelled=by_kind)


def without_factor(steps: Sequence[OffStep]) -> tuple[int, int]:
    """How many scaled steps lie in ranges whose factor was chosen without their GPU and source."""
    judged_steps = [step for step in judged(steps) if step.step.known == ScaledTo.OTHER]
    inside = [
        step.times(
            widening([o for o in judged_steps if o.step.is_apart(step.step.owner, step.step.chip)])
        ).inside
        for step in judged_steps
    ]
    return sum(inside), len(inside)


def timed_again() -> Iterator[tuple[str, Prediction, float]]:
    """The set, the prediction for the GPU of the recording, and the time that it took again."""
    for name, campaign in AGAIN.items():
        recorded = campaigns.traces(campaign)
        with (H200 / name).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                trace = recorded.get(_key(row))
                if trace is not None:
                    seconds = float(row.get("again_s") or row["seconds"])
                    yield name.removesuffix(".csv"), wavecast.predict(trace, ORIGIN), seconds


def _key(row: Mapping[str, str]) -> str:
    """The name of a row's recording."""
    if "batch" in row:
        return f"{row['model']}-b{row['batch']}-{row['precision']}"
    return f"{row['model'].replace(' b', '_b')}-{row['precision']}"


def same(again: Iterable[tuple[str, Prediction, float]]) -> Iterator[OffStep]:
    """The steps that keep the GPU busy, predicted for the GPU that they were measured on."""
    for name, prediction, seconds in again:
        if prediction.gpu_s > MARGIN * prediction.host_s:
            ratio = seconds / prediction.seconds
            yield of_prediction(prediction, ratio, "scaled", str(ScaledTo.SAME), name, name)


def waiting(again: Iterable[tuple[str, Prediction, float]]) -> tuple[int, int]:
    """How many steps that wait for the host lie in its range, and how many there are."""
    ends = host_factors(known=True)
    assert ends is not None
    inside = [
        ends.low <= seconds / prediction.seconds <= ends.high
        for _, prediction, seconds in again
        if prediction.host_s > MARGIN * prediction.gpu_s
    ]
    return sum(inside), len(inside)


def main(arguments: Sequence[str] = ()) -> None:
    """Scale the steps, write the classes, and print the tables."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, *needs.OPS_AND_STEPS)
    parser.add_argument("--cache", type=Path, required=True, help="folder that keeps fits")
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    args = parser.parse_args(arguments)
    again = list(timed_again())
    apart = KeptApart(args.data, args.cache)
    steps = [*published(recordings(args.data), apart), *same(again)]
    ranges = Ranges.of(steps)
    text, shown = ranges.to_toml(), "\n".join(table(ranges.judged))
    (MODELS / "ranges.toml").write_text(text, encoding="utf-8")
    inside, count = waiting(again)
    held, of = without_factor(steps)
    shown += (
        f"\n\nWith the factor chosen without the GPU and source, too, {held} of {of} scaled steps "
        f"lie in their ranges.\n\nOf {count} steps that wait for the host and were timed again on "
        f"the same GPU, {inside} lie in the range of a calibrated host."
    )
    print(f"{text}\n{shown}\n\n{widths_table(ranges)}")
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-ranges.md", MARK, shown)
        pages.write(DOCS / "concepts" / "estimates.md", MARK, widths_table(ranges))
