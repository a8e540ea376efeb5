"""One table of all published steps on several GPUs that were scored.

    python -m lab score distributed --data FOLDER --source NAMES --rows N --save FILE
    python -m lab score distributed_summary FILE... --data FOLDER

Needs pandas and the public table distributed (docs/sources.md). Reads the files that the first
command saved, and prints the table of docs/parallel.md. Sources that publish tuned steps are also
taken together, without mixtures of experts, adapters and models with fewer layers than usual.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.measured.tables import read_rows
from lab.pages import heading
from lab.score.distributed import group_of, is_flagged

TUNED = ("llm-foundry", "torchtitan", "dgxc-benchmarking", "NeMo", "Megatron-Bridge", "MLPerf")
"""Sources whose steps were tuned by those who publish them."""


@dataclass(frozen=True)
class JudgedStep:
    """A row of the public table with what was predicted."""

    row: Mapping[str, Any]
    ratio: float
    """Predicted through measured."""

    @property
    def source(self) -> str:
        """The source; vTrain's one machine and several apart, all rounds of MLPerf together."""
        name = group_of(self.row)
        return "MLPerf" if name.startswith("training_results") else name

    @property
    def is_judged(self) -> bool:
        """Whether it is one of the tuned steps that the target is for.

        Mixtures of experts, adapters and models with fewer layers than their name says are not.
        """
        plain = (self.row["n_experts"] or 1) == 1 and self.row["task"] != "lora"
        shortened = "proxy_layers" in str(self.row["qc"] or "")
        return self.source in TUNED and plain and not shortened

    @property
    def in_16_bits(self) -> bool:
        """Whether all products are in 16 bits."""
        return str(self.row["precision"]).startswith(("bf16", "fp16"))


def read_judged(paths: Sequence[Path], table: Sequence[Mapping[str, Any]]) -> list[JudgedStep]:
    """The steps of some files that `lab.score.distributed --save` wrote."""
    by_id = {str(row["row_id"]): row for row in table}
    judged = []
    for path in paths:
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                if line.get("stated") == "no":
                    continue
                ratio = float(line["predicted_s"]) / float(line["measured_s"])
                judged.append(JudgedStep(by_id[line["row_id"]], ratio))
    return judged


Group = Callable[[JudgedStep], bool]


def groups_of(judged: Sequence[JudgedStep]) -> dict[str, Group]:
    """The groups of the table: sources, parts of them, and tuned sources together."""
    sources: dict[str, Group] = {
        name: partial(_is_from, name) for name in sorted({step.source for step in judged})
    }
    return sources | {
        "dgxc, 16 bits": lambda s: (
            _is_from("dgxc-benchmarking", s) and s.is_judged and s.in_16_bits
        ),
        "dgxc, 8 bits": lambda s: (
            _is_from("dgxc-benchmarking", s) and s.is_judged and not s.in_16_bits
        ),
        "nanotron, not flagged": lambda s: "nanotron" in s.source and not is_flagged(s.row),
        "tuned sources, 16 bits": lambda s: s.is_judged and s.in_16_bits,
        "tuned sources, 16 and 8 bits": lambda s: s.is_judged,
    }


def _is_from(source: str, step: JudgedStep) -> bool:
    return step.source == source


def table(judged: Sequence[JudgedStep]) -> list[str]:
    """Lines of the table."""
    lines = [*heading("source | rebuilt | mean error | median | bias")]
    for name, belongs in groups_of(judged).items():
        ratios = np.array([step.ratio for step in judged if belongs(step)])
        if len(ratios):
            errors = np.abs(ratios - 1)
            lines.append(
                f"| {name} | {len(ratios)} | {errors.mean():.1%} | {np.median(errors):.1%} "
                f"| {np.median(ratios) - 1:+.0%} |"
            )
    return lines


def main(given: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = needs.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="files that --save wrote")
    needs.add_data(parser, "distributed")
    args = parser.parse_args(given)
    rows = read_rows(args.data / "distributed" / "steps.parquet")
    print("\n".join(table(read_judged(args.files, rows))))
