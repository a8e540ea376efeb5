"""Decoders of any size as targets of commands."""

from __future__ import annotations

from typing import Any

import pytest

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.targets.sources import trace
from wavecast.targets.targets import resolve
from wavecast.traces.step import Role, Trace


def test_the_sizes_of_a_target_are_those_of_the_model() -> None:
    options = ModelOptions(layers=3, hidden=32, heads=4, vocab=64, seq=16, ffn=48, kv_heads=2)
    target = resolve("llama", 2, "bf16", options)
    assert target.samples == 2 * 16
    assert target.make_step is not None
    step = trace(target.make_step)
    assert isinstance(step, Trace)
    assert {c.module.split(".")[2] for c in step if ".blocks." in c.module} == {"0", "1", "2"}
    block = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32
    held = sum(a.nbytes for a in step.allocations if a.role is Role.PARAMETER)
    assert held == 4 * (64 * 32 + 3 * block + 32)


def _weights(target: str, **sizes: Any) -> tuple[str, int]:
    """The model that a target and its sizes name, and the parameters of its trace."""
    resolved = resolve(target, 1, "fp32", ModelOptions(seq=16, **sizes))
    assert resolved.make_step is not None
    step = trace(resolved.make_step)
    assert isinstance(step, Trace)
    held = sum(a.nbytes for a in step.allocations if a.role is Role.PARAMETER)
    return resolved.name, held // 4


@pytest.mark.parametrize(
    ("target", "sizes", "shown"),
    [
        ("llama", {"layers": 1, "hidden": 256}, "heads 32, vocab 128256, kv_heads 32, ffn 1024"),
        ("llama", {"layers": 1, "heads": 16}, "hidden 2048, ffn 8192, vocab 128256, kv_heads 16"),
        ("llama", {"layers": 1}, "hidden 2048, heads 32, kv_heads 8, ffn 8192, vocab 128256"),
        ("gpt", {"layers": 1, "hidden": 512}, "heads 16, vocab 50304, kv_heads 16, ffn 2048"),
        ("mixtral", {"layers": 1, "hidden": 512}, "kv_heads 32, ffn 2048"),
    ],
)
def test_what_is_not_given_follows_and_is_shown(
    target: str, sizes: dict[str, int], shown: str
) -> None:
    title, weights = _weights(target, **sizes)
    assert shown in title
    assert f"{weights / 1e6:.3g} million parameters" in title


def test_llama_2_7b_has_its_parameters() -> None:
    sizes = ModelOptions(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000, untied=True)
    title = resolve("llama", 1, "bf16", sizes).name
    assert "by default seq 2048, kv_heads 32, head_size 128; 6.74 billion parameters" in title


def test_llama_without_sizes_is_the_model_of_the_suite() -> None:
    assert resolve("llama").text == "llama-1b"


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("resnet50", ModelOptions(layers=3), "--layers: only for decoders of any size"),
        ("hf:gpt2", ModelOptions(kv_heads=3), "--kv-heads: only for decoders of any size"),
        ("gpt", ModelOptions(qlora=True), "--qlora: not for gpt"),
        ("gpt", ModelOptions(weights="int8"), "unknown --weights 'int8'"),
    ],
)
def test_options_of_others_are_refused(target: str, options: ModelOptions, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        resolve(target, options=options)
