"""How good are predictions that were committed before their steps ran? A line for each blind test.

    python -m lab score blind_tests [--write]

Each line has the errors of one test as its predictions were committed, with the versions and models
of that day. `--write` puts the table into docs/index.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from lab import needs
from lab.markdown import heading
from lab.measured import jax_steps
from lab.places import DOCS, H200
from lab.score import blind_torch, jax, pages

PAGE = DOCS / "index.md"
MARK = "blind tests"
JAX = {
    "blind": "JAX, 20 steps of many kinds",
    "second": "JAX, half of them of kinds that no fit has seen",
    "odd": "JAX, odd kinds: sparse matrices, sorting, derivatives of derivatives",
}
"""The title of each blind test of JAX by its group of steps."""


@dataclass(frozen=True)
class BlindTest:
    """The errors of one test: a number for each step that was measured."""

    title: str
    gpu: tuple[float, ...]
    iteration: tuple[float, ...]
    memory: tuple[float, ...]
    held: int
    """How many iterations were within their range."""

    @property
    def line(self) -> str:
        """Its line of the table: mean errors, and medians in parentheses."""
        cells = [_cell(errors) for errors in (self.gpu, self.iteration, self.memory)]
        return f"| {self.title} | {' | '.join(cells)} | {self.held} of {len(self.iteration)} |"


def _cell(errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"{mean(sizes):.1%} ({median(sizes):.1%})"


def _of_torch(test: blind_torch.TorchTest) -> BlindTest:
    steps = blind_torch.steps(test)
    return BlindTest(
        title=test.title,
        gpu=tuple(step.gpu_error for step in steps),
        iteration=tuple(step.error for step in steps),
        memory=tuple(step.memory_error for step in steps if step.memory_error is not None),
        held=sum(step.within for step in steps),
    )


def _of_jax(group: str) -> BlindTest:
    found = jax_steps.steps(group)
    path = H200 / "jax" / f"{group}-predictions.json"
    told = [row for row in json.loads(path.read_text(encoding="utf-8")) if row["name"] in found]
    true = [jax.measured(found[row["name"]]) for row in told]

    def off(name: str) -> tuple[float, ...]:
        return tuple(row[name] / known[name] - 1 for row, known in zip(told, true, strict=True))

    pairs = zip(told, true, strict=True)
    return BlindTest(
        title=JAX[group],
        gpu=off("gpu_s"),
        iteration=off("seconds"),
        memory=off("memory_bytes"),
        held=sum(row["low_s"] <= known["seconds"] <= row["high_s"] for row, known in pairs),
    )


def tests() -> Iterator[BlindTest]:
    """The blind tests that were measured, as they were made, those of torch first."""
    yield from (_of_torch(test) for test in blind_torch.TESTS if test.folders)
    yield from map(_of_jax, JAX)


def table() -> str:
    """The table of the page."""
    top = "steps that nobody had run | GPU time | iteration | memory | in range"
    return "\n".join([*heading(top), *(test.line for test in tests())])


def main(given: Sequence[str] = ()) -> None:
    """Print the table, and write it into the page if asked."""
    parser = needs.parser(__doc__)
    parser.add_argument("--write", action="store_true", help="write it into the page")
    args = parser.parse_args(given)
    print(table())
    if args.write:
        pages.write(PAGE, MARK, table())
