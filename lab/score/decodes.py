"""How long prompts and single tokens take with language models, predicted against measured.

    python -m lab score decodes [--rows]

Needs transformers. Reads measurements/h200/decodes: `first.json`, which was measured before the
host's cost of forward passes was repaired, `second.json` and `third.json`. Prints the tables of
docs/howto/predict-text-generation.md. Steps of a round that the GPU limits, whose time is the
GPU's, are apart from those that the host limits. `predicted.json` and `predicted_third.json` were
committed before the second and the third round were measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import wavecast
from lab import needs
from lab.pages import heading
from lab.places import H200
from wavecast.frameworks.pytorch.huggingface.inference import (
    InferenceStep,
    drop_latest,
    make_step,
)
from wavecast.hardware.devices import device
from wavecast.targets.sources import captured

GPU = "h200-sxm"
HOST_SHARE = 0.7
"""The share of a step's time above which the host is taken to have been the slower side."""
FOLDER = H200 / "decodes"
COMPILED: Mapping[str, bool | str] = {"compiled": True, "reduce-overhead": "reduce-overhead"}
"""How tracing compiles a step, by the way in which it runs."""


@dataclass(frozen=True)
class InferenceCase:
    """One step of a model."""

    model: str
    task: str
    batch: int
    seq: int
    """The tokens of the prompt, or in the cache."""
    cache: str = "dynamic"
    way: str = "eager"
    """How it runs: "eager", "graph" (one CUDA graph), "compiled", or "reduce-overhead" (compiled,
    with CUDA graphs)."""

    @property
    def key(self) -> str:
        """The step in one word."""
        return f"{self.model}-{self.task}-b{self.batch}-s{self.seq}-{self.cache}-{self.way}"


def recipe(case: InferenceCase) -> Any:
    """The recipe of a case's step."""
    from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
    from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of

    cache = "static" if case.cache == "static" else None
    options = ModelOptions(task=case.task, seq=case.seq, cache=cache)
    return recipe_of(case.model, case.batch, None, options)


class CroppingStep(InferenceStep):
    """The step as the first two rounds measured it: each token begins with views of the cache.

    Views are not contiguous, and `cat` takes another kernel for them. `generate` has none, and
    neither has the step that `wavecast predict` traces since then.
    """

    shorten = staticmethod(drop_latest)


@dataclass(frozen=True)
class Round:
    """Steps that were measured together."""

    title: str
    file: str
    committed: str = ""
    """The predictions that were committed before; empty if there were none."""
    step: type[InferenceStep] = InferenceStep


ROUNDS = (
    Round("first round", "first.json", step=CroppingStep),
    Round("second round", "second.json", "predicted.json", step=CroppingStep),
    Round("third round", "third.json", "predicted_third.json"),
)


def predict(case: InferenceCase, kind: type[InferenceStep]) -> wavecast.Prediction:
    """The prediction of a step."""
    step_recipe, compiled = recipe(case), COMPILED.get(case.way, False)
    trace = captured(
        lambda: kind(**vars(make_step(step_recipe))), gpu=device(GPU), compiled=compiled
    )
    return wavecast.predict(trace, GPU, graphed=case.way == "graph")


def row_of(case: InferenceCase, kind: type[InferenceStep]) -> dict[str, Any]:
    """A step with its predicted time, range, GPU time and memory."""
    prediction = predict(case, kind)
    assert prediction.memory is not None
    times = {name: getattr(prediction, name) for name in ("seconds", "low_s", "high_s", "gpu_s")}
    return {**asdict(case), **times, "peak_bytes": prediction.memory.peak_bytes}


def measured(name: str) -> Iterator[tuple[InferenceCase, dict[str, Any]]]:
    """The steps of a round that were measured, each with what was measured."""
    fields = InferenceCase.__dataclass_fields__
    for row in json.loads((FOLDER / name).read_text(encoding="utf-8"))["steps"]:
        if "seconds" in row:
            case = InferenceCase(**{field: row[field] for field in fields if field in row})
            yield case, asdict(case) | row


def _host_bound(row: Mapping[str, Any]) -> bool:
    """Whether the host issued a measured step for nearly as long as it took.

    The others, and steps that are replayed as one graph, took as long as the GPU worked.
    """
    return bool(row["issued_s"] > HOST_SHARE * row["seconds"])


def _print(title: str, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], rows: bool) -> None:
    """Print the errors of some steps, and each step if wanted."""
    if rows:
        names = "model | task | batch | tokens | way | measured ms | predicted ms | error | memory"
        print(*heading(names, "lllll"), sep="\n")
    for prediction, row in pairs if rows else ():
        step = " | ".join(str(row[name]) for name in ("model", "task", "batch", "seq", "way"))
        error, memory = (prediction[n] / row[n] - 1 for n in ("seconds", "peak_bytes"))
        times = f"{row['seconds'] * 1e3:.2f} | {prediction['seconds'] * 1e3:.2f} | {error:+.0%}"
        print(f"| {step} | {times} | {memory:+.1%} |")
    errors = [abs(prediction["seconds"] / row["seconds"] - 1) for prediction, row in pairs]
    memory = [abs(prediction["peak_bytes"] / row["peak_bytes"] - 1) for prediction, row in pairs]
    ranged = [(prediction, row) for prediction, row in pairs if prediction["low_s"] is not None]
    inside = sum(
        prediction["low_s"] <= row["seconds"] <= prediction["high_s"] for prediction, row in ranged
    )
    print(
        f"\n{title}: {len(pairs)} steps, time {mean(errors):.1%} on average (median "
        f"{median(errors):.1%}), memory {mean(memory):.1%}, "
        f"in the range {inside} of {len(ranged)}\n"
    )


def _print_versions(test: Round) -> None:
    """Say whether the code that is traced is that which was measured: attention may differ."""
    import transformers

    ran = json.loads((FOLDER / test.file).read_text(encoding="utf-8")).get("transformers")
    if ran not in (None, transformers.__version__):
        print(f"{test.title}: traced with transformers {transformers.__version__}, ran with {ran}")


def _print_round(test: Round, rows: bool) -> None:
    _print_versions(test)
    measurements = list(measured(test.file))
    now = [(row_of(case, test.step), row) for case, row in measurements]
    if not test.committed:
        return _print(test.title, now, rows)
    steps = json.loads((FOLDER / test.committed).read_text(encoding="utf-8"))["steps"]
    blind = {
        InferenceCase(**{f: row[f] for f in InferenceCase.__dataclass_fields__}).key: row
        for row in steps
    }
    _print(
        f"{test.title}, as committed",
        [(blind[case.key], row) for case, row in measurements],
        False,
    )
    for title, holds in (("GPU time", False), ("host-bound iterations", True)):
        chosen = [pair for pair in now if _host_bound(pair[1]) is holds]
        _print(f"{test.title}, {title}", chosen, rows)
    return _print(test.title, now, False)


def main(given: Sequence[str] = ()) -> None:
    """Print the errors of all rounds."""
    parser = needs.parser(__doc__)
    parser.add_argument("--rows", action="store_true", help="print each step")
    rows = parser.parse_args(given).rows
    for test in ROUNDS:
        _print_round(test, rows)
