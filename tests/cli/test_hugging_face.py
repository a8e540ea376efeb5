"""`hf:` targets on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_configs as tiny
from shell import run, run_process

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")


@pytest.fixture
def llama(tmp_path: Path) -> str:
    return f"hf:{tiny.written(tmp_path, tiny.LLAMA)}"


def test_predict_says_what_is_trained(llama: str) -> None:
    done = run(
        *("predict", llama, "--batch", 2, "--seq", 64, "--lora", "r=4", "--weights", "bf16"),
        *("--checkpointing", "--targets", "q_proj", "--gpu", "l4", "--json"),
    )
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["target"].endswith("batch 2, 64 tokens, bf16 weights, LoRA r=4, checkpointing")
    (prediction,) = answer["predictions"]
    assert prediction["unit"] == "tokens"
    assert prediction["throughput_per_s"] == pytest.approx(2 * 64 / prediction["seconds"])


def test_tensor_ranks_follow_the_plan_of_transformers(llama: str) -> None:
    step = ("predict", llama, "--batch", 2, "--seq", 64, "--gpu", "l4", "--json")

    def notes(*options: str) -> list[str]:
        done = run(*step, "--parallel", "tensor=2", *options)
        assert done.code == 0, done.err
        return list(json.loads(done.out)["predictions"][0]["notes"])

    assert any("as in the given plan: 15 matmuls" in note for note in notes())
    assert not any("given plan" in note for note in notes("--lora", "r=4"))


def test_memory_counts_4bit_weights(llama: str) -> None:
    def weights(*options: str) -> int:
        done = run("memory", llama, "--seq", 64, *options, "--json")
        assert done.code == 0, done.err
        answer = json.loads(done.out)
        memory = answer["memories"][0] if isinstance(answer, dict) else answer[0]
        return int(memory["by_kind"]["weights"])

    linear = 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64)
    saved = weights("--lora", "r=8") - weights("--qlora", "--lora", "r=8")
    scales = linear // 64 + 4 * 14  # of 14 layers with at most 256 blocks
    tables = 14 * 4 * (16 + 256 + 1)
    assert saved == 4 * linear - linear // 2 - scales - tables


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("fits", "--gpu", "l4"),
        ("max-batch", "--gpu", "rtx-2070", "--start", "4096"),
        ("profile", "--gpu", "l4"),
        ("trace",),
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_the_options(command: tuple[str, ...], llama: str) -> None:
    done = run(command[0], llama, "--seq", 16, "--qlora", "--checkpointing", *command[1:])
    assert done.code == 0, done.err
    assert "config.json" in done.out


@pytest.mark.parametrize("command", ["predict", "memory", "fits", "max-batch", "profile", "trace"])
def test_the_options_are_refused_for_other_targets(command: str) -> None:
    done = run(command, "resnet50", "--qlora", *(() if command == "trace" else ("--gpu", "l4")))
    assert done.code == (2 if command == "fits" else 1)
    assert "--qlora: only for Hugging Face models (hf:NAME), not for resnet50" in done.err


NO_NETWORK = """
import socket
def refuse(*_, **__):
    raise AssertionError("the network was used")
socket.socket.connect = socket.getaddrinfo = refuse
"""


@pytest.mark.slow
def test_nothing_is_downloaded_and_nothing_else_is_printed(llama: str) -> None:
    """In a new process, where the libraries are imported while tracing."""
    done = run_process(
        *("predict", llama, "--seq", 16, "--qlora", "--gpu", "l4", "--json"), python=NO_NETWORK
    )
    assert done.code == 0, done.err
    assert not json.loads(done.out)["predictions"][0]["unpredicted"]
    done = run_process("predict", "hf:someone/unknown", "--gpu", "l4", python=NO_NETWORK)
    assert done.code == 1
    assert "Nothing is downloaded" in done.err
