"""Scripts and `hf:` targets that ran on a real GPU, beside what is predicted for them.

    python -m lab score front_door            # prints both tables
    python -m lab score front_door --write    # writes them into the how-to pages

The tables are those that were written on the GPU
machine, predictions included: both sides saw the same releases of torch and of the libraries.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from statistics import median

from lab.places import DOCS, MEASUREMENTS
from lab.scores import ScoreTable

SCRIPTS = DOCS / "howto" / "run-your-script.md"
MODELS = DOCS / "howto" / "predict-a-hugging-face-model.md"
MARK = "measured on an H200"
_GIB = 1 << 30

Row = Mapping[str, str]


def rows(name: str) -> list[Row]:
    """The rows of a table of measurements."""
    with (MEASUREMENTS / "h200" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def in_range(row: Row) -> bool:
    """Whether the measured time lies in the predicted range."""
    low_s, high_s = float(row["predicted_low_s"]), float(row["predicted_high_s"])
    return low_s <= float(row["measured_s"]) <= high_s


def summary(name: str) -> str:
    """How many steps of a table lie in their range, and how much slower those were."""
    held = [row for row in rows(name) if in_range(row)]
    slower = median(float(row["measured_s"]) / float(row["predicted_s"]) for row in held)
    return f"{len(held)} of {len(rows(name))} in range, which took {slower:.1f} times as long"


def _milliseconds(row: Row, column: str) -> str:
    return f"{1e3 * float(row[column]):.1f}" if row[column] else "?"


def _difference(row: Row, predicted: str, measured: str) -> str:
    return f"{float(row[predicted]) / float(row[measured]) - 1:+.0%}" if row[measured] else "?"


def _times(row: Row) -> list[str]:
    return [
        _milliseconds(row, "measured_s"),
        _milliseconds(row, "predicted_s"),
        f"{_milliseconds(row, 'predicted_low_s')} - {_milliseconds(row, 'predicted_high_s')}",
        "yes" if in_range(row) else "no",
        _milliseconds(row, "kernel_s"),
        _milliseconds(row, "predicted_gpu_s"),
        _difference(row, "predicted_gpu_s", "kernel_s"),
    ]


_TIMES = (
    *("step measured (ms)", "predicted", "range", "in range"),
    *("GPU busy, measured (ms)", "predicted", "difference"),
)


def _table(heads: tuple[str, ...], lines: list[list[str]]) -> str:
    rules = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (list(heads), rules, *lines))


def scripts_table() -> str:
    """The table of the scripts."""
    lines = [[f"`{row['script']}`", *_times(row)] for row in rows("scripts")]
    return _table(("script", *_TIMES), lines)


def models_table() -> str:
    """The table of the `hf:` targets, with their memory."""
    lines = [
        [
            f"`{row['step']}`",
            _milliseconds(row, "measured_s"),
            f"{_milliseconds(row, 'predicted_s')}{'' if in_range(row) else ' (out of range)'}",
            *(_milliseconds(row, column) for column in ("kernel_s", "predicted_gpu_s")),
            *(
                f"{int(row[column]) / _GIB:.2f}"
                for column in ("measured_peak_bytes", "predicted_peak_bytes")
            ),
        ]
        for row in rows("huggingface")
    ]
    heads = ("step (ms)", "predicted", "GPU busy (ms)", "predicted", "peak (GiB)", "predicted")
    return _table(("measured on the GPU", *heads), lines)


def tables() -> Iterator[ScoreTable]:
    """The tables of both pages, and how many steps lie in their ranges."""
    yield ScoreTable(scripts_table(), SCRIPTS, MARK)
    yield ScoreTable(models_table(), MODELS, MARK)
    yield ScoreTable(f"scripts: {summary('scripts')}\nmodels: {summary('huggingface')}")
