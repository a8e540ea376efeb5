"""Do scripts that run unchanged give the step that was written by hand, and how soon?

    python -m lab score scripts

Needs transformers, accelerate, pytorch-lightning and diffusers. The command runs each script of
`tests/scripts` with `wavecast run`, in a process and an empty folder of its own; prints a table.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import torch

import wavecast
from lab import needs
from lab.pages import heading
from lab.places import ROOT
from lab.steps.scripts import CASES, ScriptCase, prepare

GPU = "a100-sxm-80gb"


@dataclass(frozen=True)
class ScriptScore:
    """A script's prediction beside that of the step written by hand."""

    case: ScriptCase
    cpu_s: float
    """The CPU seconds from the start of the process to the answer, imports included."""
    step: str
    """Which step was found, and how."""
    seconds: float
    by_hand_s: float
    kept: bool
    """Whether the script left its folder as it was."""

    @property
    def difference(self) -> float:
        """The relative difference of the two predictions."""
        return self.seconds / self.by_hand_s - 1


def score(case: ScriptCase) -> ScriptScore:
    """Run one script, and trace the step that was written by hand."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        files = sorted(folder.rglob("*"))
        before = _cpu_s()
        command = [sys.executable, "-m", "wavecast", "run", "--gpu", GPU, "--json"]
        done = subprocess.run(
            [*command, str(case.script), *case.arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=True,
        )
        cpu_s = _cpu_s() - before
        kept = files == sorted(folder.rglob("*"))
    record = json.loads(done.stdout)
    # Libraries of earlier scripts switch this off for the whole process.
    torch.distributions.Distribution.set_default_validate_args(__debug__)
    with redirect_stdout(sys.stderr):
        by_hand = wavecast.predict(wavecast.trace(case.make_step, gpu=GPU), GPU)
    script = record["script"]
    return ScriptScore(
        case=case,
        cpu_s=cpu_s,
        step=f"{script['step']}: {script['choice']}",
        seconds=record["predictions"][0]["seconds"],
        by_hand_s=by_hand.seconds,
        kept=kept,
    )


def row(result: ScriptScore) -> str:
    """One row of the table."""
    case = result.case
    cells = (
        f"`{case.name}`",
        case.like,
        result.step,
        f"{1e3 * result.seconds:.2f}",
        f"{1e3 * result.by_hand_s:.2f}",
        f"{100 * result.difference:+.2f}%",
        f"{result.cpu_s:.0f}",
    )
    return f"| {' | '.join(cells)} |{'' if result.kept else ' wrote to its folder'}"


def main(given: Sequence[str] = ()) -> None:
    """Print the table."""
    needs.parser(__doc__).parse_args(given)
    print(
        *heading("script | like | step | script (ms) | by hand (ms) | difference | CPU s", "lll"),
        sep="\n",
    )
    for case in CASES:
        print(row(score(case)), flush=True)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
