"""How much do a user's measurements improve predictions for a GPU that no fit has seen?

    python -m lab score corrections [--every N] [--sweep CAMPAIGN [--chunks N]]

Our H200 stands for such a GPU: the trees that were grown on its chip are taken out of the op
models. (What all GPUs share was fitted on its ops as well.) Corrections are learned from what a
user would measure (`wavecast.predictors.corrected`): steps of the suite, each of another model;
single layers with random sizes, as `wavecast calibrate --ops` sweeps them in ten minutes; or both.
The steps of each model are predicted with corrections that its own steps had no part in; those of
`population` have no model in common with the suite. Only the GPU's time counts.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lab import needs
from lab.fit.corrections import SWEEPS
from lab.measured import campaigns
from lab.pages import heading
from wavecast import Predictor, Trace, device, predict
from wavecast.predictors.corrected import Corrected, Corrections, learn
from wavecast.predictors.learned.gpus import chip_name
from wavecast.predictors.learned.predictor import Learned

GPU = "h200-sxm"
LEARNED_FROM = (1, 3, 10)
"""How many measured steps a user gives."""
MINUTES = (1, 10)
"""How many minutes a user sweeps."""
SWEPT_IN_TEN = 60
"""The recorded chunks of layers that our GPU runs in ten minutes: chunks of 60 layers took 5 to 7.5
seconds, and most of the recorded ones have 120."""


def without_trees(learned: Learned) -> Learned:
    """The predictor without what was grown on the chip of our GPU."""
    chip = f".{chip_name(device(GPU))}"
    models = {
        name: replace(model, chips={k: v for k, v in model.chips.items() if not k.endswith(chip)})
        for name, model in learned.models.items()
    }
    return replace(learned, models=models)


def model_of(key: str) -> str:
    """The model of a step of the suite."""
    return re.split(r"-b\d", key)[0]


def error(trace: Trace, predictor: Predictor) -> float:
    """The error of the GPU's time of a step."""
    measured_s = sum(kernel.seconds for call in trace for kernel in call.kernels)
    return predict(trace, device(GPU), predictor=predictor).gpu_s / measured_s - 1


def chosen(traces: Mapping[str, Trace], count: int, left_out: str, seed: int) -> list[Trace]:
    """Steps of as many models, none of them the one that is left out."""
    models = sorted({model_of(key) for key in traces} - {left_out})
    picked = random.Random(seed).sample(models, count)
    keys = [[key for key in traces if model_of(key) == model] for model in picked]
    return [traces[random.Random(seed).choice(sorted(own))] for own in keys]


def sweeps(
    names: Sequence[str], base: Predictor, in_ten: int = SWEPT_IN_TEN
) -> dict[int, Corrections]:
    """What sweeps of some minutes teach: chunks of recorded campaigns, in a fixed random order."""
    chunks = [trace for name in names for trace in campaigns.traces(name).values()]
    random.Random(0).shuffle(chunks)
    counts = {minutes: max(in_ten * minutes // 10, 1) for minutes in MINUTES}
    return {
        minutes: learn([], device(GPU), base, swept=chunks[:count])
        for minutes, count in counts.items()
    }


def scored(
    every: int, sweep: Sequence[str] = SWEEPS, in_ten: int = SWEPT_IN_TEN
) -> Iterator[tuple[str, str, float]]:
    """The set, what was learned from, and the error of each step."""
    suite, others = campaigns.traces("suite"), campaigns.traces("population")
    bare = without_trees(Learned.shipped())
    swept = sweeps(sweep, bare, in_ten)
    tests = [("suite", key) for key in list(suite)[::every]]
    tests += [("population", key) for key in list(others)[::every]]
    for number, (name, key) in enumerate(tests):
        trace = (suite if name == "suite" else others)[key]
        learned: dict[str, Corrections] = {}
        for count in LEARNED_FROM:
            given = chosen(suite, count, model_of(key), number)
            learned["1 step" if count == 1 else f"{count} steps"] = learn(given, device(GPU), bare)
        for minutes, own in swept.items():
            learned[f"ops of {minutes} min"] = own
        learned["both"] = learned[f"{count} steps"] | swept[MINUTES[-1]]
        yield name, "nothing", error(trace, bare)
        for what, own in learned.items():
            yield name, what, error(trace, Corrected(bare, {own.gpu: own}))
        yield name, "with its own trees", error(trace, Learned.shipped())


def main(given: Sequence[str] = ()) -> None:
    """Print the errors before and after learning."""
    parser = needs.parser(__doc__)
    parser.add_argument("--every", type=int, default=1, help="score every so manieth step")
    parser.add_argument("--sweep", nargs="+", default=SWEEPS, help="campaigns of single layers")
    parser.add_argument(
        "--chunks", type=int, default=SWEPT_IN_TEN, help="how many of their chunks take ten minutes"
    )
    args = parser.parse_args(given)
    rows = list(scored(args.every, args.sweep, args.chunks))
    print("\n".join(heading("set | learned from | steps | mean error | median | bias")))
    for name, learned_from in dict.fromkeys((row[0], row[1]) for row in rows):
        errors = [row[2] for row in rows if row[:2] == (name, learned_from)]
        sizes = [abs(off) for off in errors]
        cells = (statistics.mean(sizes), statistics.median(sizes), statistics.median(errors))
        shown = " | ".join(
            f"{cell:+.1%}" if n == 2 else f"{cell:.1%}" for n, cell in enumerate(cells)
        )
        print(f"| {name} | {learned_from} | {len(errors)} | {shown} |")
