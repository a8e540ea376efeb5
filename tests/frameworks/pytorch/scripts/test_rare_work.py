"""Steps that differ: work that comes every few steps, warm-ups, and batches of other sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

import wavecast
from wavecast.frameworks.pytorch.scripts.batches import _spread
from wavecast.frameworks.pytorch.scripts.periods import SPREAD_OVER, listed

MakeScript = Callable[..., Path]

LENGTHS = """
from torch.utils.data import DataLoader, Dataset
class Sequences(Dataset):
    def __len__(self): return len(lengths)
    def __getitem__(self, index): return torch.randn(lengths[index], 32)
def padded(parts): return nn.utils.rnn.pad_sequence(parts).flatten(0, 1)
def train(**options):
    while True:
        for x in DataLoader(Sequences(), collate_fn=padded, **options):
            optimizer.zero_grad()
            model(x.cuda()).sum().backward()
            optimizer.step()
"""


def rows_of(run: wavecast.ScriptRun) -> float:
    """The rows of the batch that the step multiplies."""
    [rows] = [call.op.inputs[1].shape[0] for call in run.trace if call.op.base == "aten.addmm"]
    return float(rows)


@pytest.mark.parametrize(
    "order",
    [
        "lengths = list(range(8, 648))\ntrain(batch_size=8)\n",
        "lengths = list(range(648, 8, -1))\ntrain(batch_size=8)\n",
        # A quarter of the epoch has the longest batches, one after another.
        "lengths = [min(n, 488) for n in range(648, 8, -1)]\ntrain(batch_size=8)\n",
        # Sorted within groups of ten batches.
        "lengths = sum(([*range(648 - i, 8, -8)] for i in range(8)), [])\ntrain(batch_size=8)\n",
    ],
)
def test_sorted_and_bucketed_lengths_take_the_mean_of_the_epoch(
    order: str, script: MakeScript
) -> None:
    run = wavecast.run_script(script(LENGTHS + order))
    names: dict[str, list[int]] = {}
    exec(order.partition("train")[0], names)
    lengths = names["lengths"]
    mean = fmean(8 * max(lengths[i : i + 8]) for i in range(0, len(lengths), 8))
    assert rows_of(run) == pytest.approx(mean, rel=0.1)
    assert "from all over the epoch" in run.choice


def test_random_lengths_without_a_loader_take_the_mean(script: MakeScript) -> None:
    body = "import random\nrandom.seed(0)\nwhile True:\n    update(random.choice((64, 512)))\n"
    body = body.replace("(64, 512)", "range(64, 512, 64)")
    run = wavecast.run_script(script(body))
    assert rows_of(run) == pytest.approx(256, abs=65)


def test_an_epoch_is_drawn_once_and_begins_all_over_it() -> None:
    order = list(_spread(iter(range(1000)), 1000))
    assert sorted(order) == list(range(1000))
    assert order[0] == 0
    first = sorted(order[1 : SPREAD_OVER + 1])
    assert [number * SPREAD_OVER // 1000 for number in first] == list(range(SPREAD_OVER))
    assert abs(order[1] - order[2]) > 900


EVERY = """
i = 0
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 32, device="cuda")).sum().backward()
    optimizer.step()
    i += 1
"""


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("if i % 10 == 0: torch.linalg.qr(model.weight)", r"1 more ops.* in every 10th step"),
        (
            "if i % 4 == 0:\n        with torch.no_grad(): ema.lerp_(model.weight, 0.1)",
            r"1 more ops.* in every 4th step \(4 to 40\)",
        ),
        (
            "if i % 16 == 0:\n        with torch.no_grad():\n            for _ in range(9):\n"
            "                model(torch.randn(4, 32, device='cuda'))",
            r"27 more ops.* in every 16th step",
        ),
        ("if i == 6: torch.linalg.qr(model.weight)", "in step 6; 40 steps do not tell how often"),
    ],
)
def test_work_that_comes_every_few_steps_is_named_with_its_period(
    work: str, said: str, script: MakeScript
) -> None:

    head = "ema = torch.zeros(8, 32, device='cuda')"
    run = wavecast.run_script(script(head + EVERY + f"    {work}\n"))
    assert (run.step, run.choice) == (3, "steps 2 and 3 are equal")
    assert len(run.left_out) == 1, run.left_out
    left_out = run.left_out[0]
    assert re.search(said, left_out), left_out


def test_works_of_different_periods_are_told_apart(script: MakeScript) -> None:
    work = """
    if i % 4 == 0:
        with torch.no_grad(): ema.lerp_(model.weight, 0.1)
    if i % 10 == 0: torch.linalg.qr(model.weight)
"""
    head = "ema = torch.zeros(8, 32, device='cuda')"
    averaged, factored = wavecast.run_script(script(head + EVERY + work)).left_out
    assert "in every 4th step (4 to 40)" in averaged
    assert "in every 10th step (10, 20, 30 and 40)" in factored


def test_after_a_warm_up_the_later_steps_count(script: MakeScript) -> None:
    body = """
i = 0
while True:
    for _ in range(min(1 + i // 2, 4)):
        model(torch.randn(4, 32, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    i += 1
"""
    run = wavecast.run_script(script(body))
    assert "4 backward passes" in run.holds
    assert not run.left_out


@pytest.mark.parametrize("end", ["raise ValueError('late')", "sys.exit(3)", "1 / 0"])
def test_what_fails_after_the_step_is_known_does_not_count(end: str, script: MakeScript) -> None:
    run = wavecast.run_script(script(EVERY + f"    if i == 7: {end}\n"))
    assert (run.step, run.left_out) == (3, ())


def test_large_steps_are_not_looked_at_for_long(script: MakeScript) -> None:
    body = "\nx = torch.zeros(8, device='cuda')" + EVERY + "    for _ in range(9000): x.add_(1)\n"
    assert wavecast.run_script(script(body)).steps < 9


def test_numbers_are_listed_by_their_runs() -> None:
    assert listed((2, 3)) == "2 and 3"
    assert listed((2, 4, 6)) == "2, 4 and 6"
    assert listed(range(2, 9)) == "2 to 8"
    assert listed((2, 3, 4, 5, 7, *range(9, 14))) == "2 to 5, 7 and 9 to 13"
