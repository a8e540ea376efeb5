"""Commands that take a step, with values that none of them takes: one line, and the right code."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong_uses import Wrong, check_wrong

STEP = "good.json.gz"
NO_DEVICE, NO_CLUSTER = 'unknown device "nothing"', 'unknown cluster "nowhere"'
SEARCH = f"parallelize {STEP} --gpu l4"
NO_GPU, NO_TARGET = "Missing option '--gpu'", "Missing argument 'TARGET'"
LINES: tuple[tuple[str, int, str], ...] = (
    (f"memory {STEP} --gpu nothing", 1, NO_DEVICE),
    ("memory cut.json.gz --gpu l4", 1, "truncated or damaged"),
    (f"memory {STEP} --gpu l4 --parallel data=0", 1, "data is 0"),
    (f"memory {STEP} --gpu l4 --parallel speed=2", 1, "as in data=8,shard=3"),
    (f"memory {STEP} --gpu l4 --html a_directory", 1, "it is a directory"),
    (f"memory {STEP} --gpu l4 --batch 8", 1, "whose batch is fixed"),
    (f"fits {STEP} --gpu nothing", 2, NO_DEVICE),
    (f"fits {STEP} --gpu l4 --parallel data=-1", 2, "data is a whole number, not '-1'"),
    ("fits altered.json.gz --gpu l4", 2, "its checksum does not match"),
    ("max-batch resnet50 --gpu l4 --start 0", 1, "the batch must be at least 1"),
    ("max-batch resnet50 --gpu l4 --limit-gib 0", 1, "--limit-gib is a number of GiB above 0"),
    ("max-batch resnet50 --gpu l4 --limit-gib nan", 1, "above 0, not nan"),
    (f"profile {STEP} --gpu l4 --kernels -1", 2, "Invalid value for '--kernels'"),
    ("profile noise.json.gz", 1, "it cannot be read as gzip"),
    ("profile measured.json.gz --parallel data=2", 1, "name a GPU (--gpu)"),
    (f"compare {STEP}", 2, "Missing argument 'B'"),
    (f"compare {STEP} gone.json.gz --gpu l4", 1, "there is no trace file gone.json.gz"),
    (f"compare {STEP} {STEP}", 2, NO_GPU),
    (f"compare {STEP} {STEP} --gpu l4 --precision-b fp8", 1, "unknown precision 'fp8'"),
    (f"compare {STEP} {STEP} --gpu l4 --html a_directory", 1, "it is a directory"),
    (f"scale {STEP} --gpu l4 --up-to 0", 1, "--up-to 0 is less than one replica"),
    (f"scale {STEP} --gpu l4 --cluster nowhere", 1, NO_CLUSTER),
    (f"scale {STEP} --gpu l4 --parallel tensor=3 --up-to 2", 1, "which has 3 GPUs"),
    ("scale measured.json.gz --gpu l4", 1, "was measured on one GPU"),
    (f"scale {STEP} --gpu l4 --tokens -5", 1, "tokens is -5.0"),
    (f"scale {STEP}", 2, NO_GPU),
    ("scale", 2, NO_TARGET),
    (f"{SEARCH} --gpus 4", 1, "--global-batch"),
    (f"{SEARCH} --gpus 0 --global-batch 64", 1, "--gpus is a whole number of at least 1"),
    (f"{SEARCH} --gpus 4 --global-batch 0", 1, "--global-batch is a whole number"),
    (f"{SEARCH} --gpus 4 --global-batch 64 --show 0", 1, "--show is a whole number"),
    (f"{SEARCH} --gpus 4 --global-batch 64 --micro-batch 2", 1, "leave out --micro-batch"),
    (f"{SEARCH} --gpus 4 --global-batch 64 --cluster nowhere", 1, NO_CLUSTER),
    ("parallelize measured.json.gz --gpu l4 --gpus 4 --global-batch 64", 1, "samples="),
    (SEARCH, 2, "Missing option '--gpus'"),
    (f"advise {STEP} --gpu l4 --change magic", 1, "there is no change 'magic'"),
    (f"advise {STEP} --gpu nothing", 1, NO_DEVICE),
    (f"advise {STEP} --gpu l4 --loader", 1, "--loader is for training scripts"),
    ("advise gone.json.gz --gpu l4", 1, "there is no trace file"),
    (f"advise {STEP}", 2, NO_GPU),
    ("advise", 2, NO_TARGET),
    (f"choose {STEP} --by luck", 2, "'luck' is not one of"),
    (f"choose {STEP} --gpus-up-to 0", 2, "Invalid value for '--gpus-up-to'"),
    (f"choose {STEP} --show 0", 2, "Invalid value for '--show'"),
    (f"choose {STEP} --gpu nothing", 1, NO_DEVICE),
    ("choose", 2, NO_TARGET),
    (f"trace {STEP} --out step.txt", 1, "a trace is saved as FILE.json.gz"),
    ("trace steps.py:fine --out a_directory", 1, "not a_directory"),
    (f"predict {STEP} --gpu l4 --parallel data", 1, "data"),
    (f"predict {STEP} --gpu l4 --parallel tensor=1.5", 1, "tensor is a whole number, not '1.5'"),
    (f"predict {STEP} --gpu l4 --parallel shard=4", 1, "it is a ZeRO stage"),
    (f"predict {STEP} --gpu l4 --parallel pipeline=2,schedule=magic", 1, "the schedules are"),
    (f"predict {STEP} --gpu l4 --ranks 0", 2, "'--ranks'"),
    (f"predict {STEP} --gpu l4 --by colour", 2, "'--by'"),
)
WRONG = [Wrong(command, command, (says,), code) for command, code, says in LINES]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.about.replace(" ", "_"))
def test_a_wrong_value_is_told_in_one_line(folder: Path, wrong: Wrong) -> None:
    check_wrong(wrong)


def test_three_hundred_wrong_command_lines_are_tried() -> None:
    from cli import test_bad_commands, test_bad_input, test_bad_options

    tables = (WRONG, test_bad_commands.WRONG, test_bad_input.WRONG, test_bad_options.WRONG)
    commands = [wrong.command for table in tables for wrong in table]
    assert len(set(commands)) == len(commands)
    assert len(commands) >= 300
