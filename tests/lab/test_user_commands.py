"""A user's command predicts what the score of a published step predicts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from published_rows import QWEN, VTRAIN
from typer.testing import CliRunner

from lab.measured.distributed_steps import command_of, rebuilt
from lab.score.distributed import PublishedSteps
from wavecast.cli.app import app

NEMO = {
    "framework": "NeMo (Megatron-Core)",
    "model": "Llama 3",
    "precision": "fp8",
    "gpu": "H100-SXM-80GB",
}


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 3, "flash_attention": False, "activation_checkpointing": "selective"},
        {**NEMO, "layers": 3, "tp": 2, "pp": 1, "sequence_parallel": True},
    ],
)
def test_the_command_gives_the_score(change: dict[str, Any]) -> None:
    row = {**VTRAIN, **change}
    _same(row)


def test_the_command_of_a_mixture_gives_the_score() -> None:
    _same({**QWEN, "layers": 2, "params_b": None})


def _same(row: dict[str, Any]) -> None:
    step = rebuilt(row)
    command = command_of(step)
    assert command is not None
    ran = CliRunner().invoke(app, [*command.split()[1:], "--json"])
    assert ran.exit_code == 0, ran.output
    (found,) = json.loads(ran.stdout)["predictions"]
    assert found["seconds"] == pytest.approx(PublishedSteps({}).score(row).seconds, rel=1e-9)
