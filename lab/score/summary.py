"""Writes the tables of docs/accuracy.md, which have five figures for every set.

    python -m lab score summary            print the tables
    python -m lab score summary --write    put them into the page, and a short one into the README

The scoring commands recorded the figures in docs/appendix/accuracy.json. Each line of a table links
to the page of the appendix that names the command which makes its figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lab.figures import Figures, percent, recorded
from lab.pages import heading
from lab.places import DOCS, ROOT
from lab.score.iterations import MODEL_OUT, REFERENCE, THROUGHOUT
from lab.scores import ScoreTable

PAGE = DOCS / "accuracy.md"
README = ROOT / "README.md"
MARK = "begin: python -m lab score summary"
SHORT = "steps in short"
"""The mark of the README's table."""


@dataclass(frozen=True)
class ShownSet:
    """One line of a table: a set of predictions."""

    key: str
    """The name of the set in the file of figures."""
    title: str
    page: str
    """The name of the appendix page with the details, without folder and suffix."""


PUBLIC = (
    ShownSet("neusight infer", "NeuSight, transformers, inference", "accuracy-steps"),
    ShownSet("neusight train", "NeuSight, transformers, training", "accuracy-steps"),
    ShownSet("timm train", "timm, image models on an RTX 3090, training", "accuracy-steps"),
    ShownSet("timm infer", "timm, image models on an RTX 3090, inference", "accuracy-steps"),
    ShownSet("lambda", "Lambda, NVIDIA's examples on 13 GPUs, training", "accuracy-steps"),
    ShownSet("nvidia", "NVIDIA's own tables for the V100, training", "accuracy-steps"),
    ShownSet("torchcnn infer", "torchcnn, image models on 5 GPUs, inference", "accuracy-steps"),
    ShownSet("torchcnn train", "torchcnn, image models on 4 GPUs, training", "accuracy-steps"),
    ShownSet("h200 suite", "our suite on the H200", "accuracy-steps"),
    ShownSet("h200 steps", "our other steps on the H200", "accuracy-steps"),
    ShownSet("h200 suite-half", "our suite on a slow host, after a profiler", "accuracy-steps"),
)
"""Whole steps, with every GPU of the same chip left out of the fit."""
OURS = (
    ShownSet("h200 GPU time, in the fit", "GPU time, models in the fit", "accuracy-families"),
    ShownSet(
        "h200 GPU time, families left out", "GPU time, model families left out", "accuracy-families"
    ),
    ShownSet("h200 GPU time, blind models", "GPU time, models never seen", "accuracy-blind"),
    ShownSet("h200 CUDA graphs", "CUDA graphs, replayed", "accuracy-hosts"),
    ShownSet(
        f"h200 iterations, {THROUGHOUT}: the suite",
        "iterations, host calibrated, machine left out",
        "accuracy-hosts",
    ),
    ShownSet(
        f"h200 iterations, {THROUGHOUT}: the suite, machines in no fit",
        "the same, two machines that are in no fit",
        "accuracy-hosts",
    ),
    ShownSet(
        f"h200 iterations, {MODEL_OUT}: the suite",
        "iterations, host calibrated, machine and model left out",
        "accuracy-hosts",
    ),
    ShownSet(
        f"h200 iterations, {REFERENCE}: the suite",
        "iterations, reference host, machine left out",
        "accuracy-hosts",
    ),
)
"""Steps on our H200, whose ops are in the fit."""
OPS = (
    ShownSet("op product/cores", "matrix products on CUDA cores", "accuracy-ops"),
    ShownSet("op product/tensor", "matrix products on tensor cores", "accuracy-ops"),
    ShownSet("op convolution/cores", "convolutions on CUDA cores", "accuracy-ops"),
    ShownSet("op convolution/tensor", "convolutions on tensor cores", "accuracy-ops"),
    ShownSet("op attention/tensor", "attention on tensor cores", "accuracy-ops"),
    ShownSet("op elementwise", "elementwise ops", "accuracy-ops"),
    ShownSet("op norm", "normalisation", "accuracy-ops"),
    ShownSet("op softmax", "softmax", "accuracy-ops"),
    ShownSet("op recurrent/cores", "recurrent layers on CUDA cores", "accuracy-ops"),
    ShownSet("op recurrent/tensor", "recurrent layers on tensor cores", "accuracy-ops"),
    ShownSet("op grouped products", "products of experts (H200, models left out)", "accuracy-ops"),
)
"""Single ops, with every GPU of the same chip left out of the fit."""
TABLES = {"steps": PUBLIC, "our H200": OURS, "ops": OPS}
IN_SHORT = (
    ("GPU left out of the fit", PUBLIC, ("lambda", "timm train", "torchcnn train", "h200 suite")),
    ("a measured GPU (H200)", OURS, ("h200 GPU time, blind models",)),
)
"""The lines of the README's table: what is known of the GPU, and the keys of its sets."""


def table(lines: Sequence[ShownSet], sets: Mapping[str, Figures]) -> str:
    """Five figures for each set, in Markdown."""
    shown = [*heading("set | n | mean error | bias | worst | in range")]
    for line in lines:
        scores = sets[line.key]
        cells = (
            f"{scores.count:,}",
            percent(scores.mean, 1),
            percent(scores.bias, signed=True),
            percent(scores.worst),
            percent(scores.in_range),
        )
        shown.append(f"| [{line.title}](appendix/{line.page}.md) | {' | '.join(cells)} |")
    return "\n".join(shown)


def in_short(sets: Mapping[str, Figures]) -> str:
    """The README's table, in Markdown: three figures for the sets that tell most."""
    shown = [*heading("step times | mean error | worst | in range")]
    for known, lines, keys in IN_SHORT:
        titles = {line.key: line.title for line in lines}
        for key in keys:
            scores = sets[key]
            cells = map(percent, (scores.mean, scores.worst, scores.in_range))
            name = f"{titles[key]} ({known}): {scores.count} steps"
            shown.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(shown)


def tables() -> Iterator[ScoreTable]:
    """The tables of docs/accuracy.md and of the README."""
    sets = recorded()
    for name, lines in TABLES.items():
        yield ScoreTable(table(lines, sets), PAGE, f"{MARK}, {name}")
    yield ScoreTable(in_short(sets), README, SHORT)
