"""Questions that users ask, and what `wavecast choose` and `wavecast parallelize` answer.

    python -m lab score questions [NAME...] [--write]

Runs each command, prints it with its answer, and writes the page docs/howto/questions.md with
`--write`. The answers hold for the shipped prices. A question about a model of 8 billion parameters
takes about a minute of CPU time.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence

from lab.places import DOCS
from lab.scores import ScoreTable

PAGE = DOCS / "howto" / "questions.md"
_GPUS = " ".join(
    f"--gpu {name}"
    for name in (
        *("rtx-4090", "rtx-5090", "l40s", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm"),
        "b200-sxm",
    )
)
_LIMITS = "--seq 2048 --samples 50000 --budget 500 --deadline 48h --show 3"
QUESTIONS = {
    "full": f"choose hf:llama-3.1-8b --precision bf16 {_LIMITS} --gpus-up-to 8 {_GPUS}",
    "qlora": f"choose hf:llama-3.1-8b --qlora {_LIMITS}",
    "pretraining": "parallelize llama --layers 32 --hidden 4096 --heads 32 --kv-heads 32 "
    "--ffn 11008 --seq 4096 --precision bf16 --weights bf16 --gpu h100-sxm-80gb "
    "--micro-batch 1 --micro-batch 2 --global-batch 2048 --tokens 1e12 --show 3 --gpus 2048",
}
"""The commands, without `wavecast`, by the mark of their answer on the page."""
_COLUMNS = "100"


def answer(command: str) -> str:
    """What a command prints on a terminal of 100 columns."""
    run = subprocess.run(
        [sys.executable, "-m", "wavecast", *shlex.split(command)],
        env=os.environ | {"COLUMNS": _COLUMNS},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.rstrip()


def shown(command: str, said: str) -> str:
    """A command and its answer, as the page has them."""
    return f"```sh\nwavecast {command}\n```\n\n```text\n{said}\n```"


def tables(names: Sequence[str]) -> Iterator[ScoreTable]:
    """Ask the questions."""
    for name in names:
        yield ScoreTable(shown(QUESTIONS[name], answer(QUESTIONS[name])), PAGE, f"answer: {name}")
