"""How much do a user's measured steps improve predictions for a GPU that no fit has seen?

    python -m lab score corrections

Our H200 stands for such a GPU: the trees that were grown on its chip are taken out of the op
models. From ten steps of the suite, each of another model, corrections are learned
(`wavecast.predictors.corrected`), as a user would who measures for ten minutes. The steps of each
model are predicted with corrections that its own steps had no part in; those of `population` have
no model in common with the suite. Only the GPU's time counts.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lab import needs
from lab.markdown import heading
from lab.measured import campaigns
from wavecast import Predictor, Trace, device, predict
from wavecast.predictors.corrected import Corrected, learn
from wavecast.predictors.learned.gpus import chip_name
from wavecast.predictors.learned.predictor import Learned

GPU = "h200-sxm"
LEARNED_FROM = (1, 3, 10)
"""How many measured steps a user gives."""


def without_trees(learned: Learned) -> Learned:
    """The predictor without what was grown on the chip of our GPU."""
    chip = f".{chip_name(device(GPU))}"
    models = {
        name: replace(model, chips={k: v for k, v in model.chips.items() if not k.endswith(chip)})
        for name, model in learned.models.items()
    }
    return replace(learned, models=models, _batches={}, _gpus={})


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


def scored(every: int) -> Iterator[tuple[str, str, float]]:
    """The set, what was learned from, and the error of each step."""
    suite, others = campaigns.traces("suite"), campaigns.traces("population")
    bare = without_trees(Learned.shipped())
    tests = [("suite", key) for key in list(suite)[::every]]
    tests += [("population", key) for key in list(others)[::every]]
    for number, (name, key) in enumerate(tests):
        trace = (suite if name == "suite" else others)[key]
        yield name, "no step", error(trace, bare)
        for count in LEARNED_FROM:
            given = chosen(suite, count, model_of(key), number)
            own = learn(given, device(GPU), bare)
            yield name, f"{count} steps", error(trace, Corrected(bare, {own.gpu: own}))
        yield name, "with its own trees", error(trace, Learned.shipped())


def main(given: Sequence[str] = ()) -> None:
    """Print the errors before and after learning."""
    parser = needs.parser(__doc__)
    parser.add_argument("--every", type=int, default=1, help="score every so manieth step")
    rows = list(scored(parser.parse_args(given).every))
    print("\n".join(heading("set | learned from | steps | mean error | median | bias")))
    for name, learned_from in dict.fromkeys((row[0], row[1]) for row in rows):
        errors = [row[2] for row in rows if row[:2] == (name, learned_from)]
        sizes = [abs(off) for off in errors]
        cells = (statistics.mean(sizes), statistics.median(sizes), statistics.median(errors))
        shown = " | ".join(
            f"{cell:+.1%}" if n == 2 else f"{cell:.1%}" for n, cell in enumerate(cells)
        )
        print(f"| {name} | {learned_from} | {len(errors)} | {shown} |")
