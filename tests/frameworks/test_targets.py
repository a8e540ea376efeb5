"""Every form of a command's target, and the arguments that it is given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from made import step

from wavecast import suite
from wavecast.errors import InvalidInput, UnknownName
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.targets.sources import trace
from wavecast.targets.targets import resolve
from wavecast.traces.step import Role, Trace

SOURCE = """
import helper

def plain():
    return lambda: ("plain",)

def with_batch(batch=7):
    return lambda: ("batch", batch)

def with_both(batch, *, precision="fp32"):
    return lambda: (batch, precision)

def with_anything(**options):
    return lambda: options

class Maker:
    def __call__(self):
        return lambda: helper.WORD

maker = Maker()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "helper.py").write_text("WORD = 'helped'\n")
    (tmp_path / "train_here.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    monkeypatch.delitem(sys.modules, "train_here", raising=False)
    return tmp_path


def result(text: str, batch: int | None = None, precision: str | None = None) -> object:
    target = resolve(text, batch, precision)
    assert target.make_step is not None
    return target.make_step()()


@pytest.mark.parametrize("place", ["train_here.py", "./train_here.py", "train_here"])
def test_a_function_is_found_in_a_file_or_module(folder: Path, place: str) -> None:
    assert result(f"{place}:plain") == ("plain",)


def test_a_file_may_import_its_neighbours_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    before = list(sys.path)
    assert result(f"{folder}/train_here.py:maker") == "helped"
    assert sys.path == before


def test_batch_and_precision_go_to_functions_that_take_them(folder: Path) -> None:
    assert result("train_here.py:with_batch") == ("batch", 7)
    assert result("train_here.py:with_batch", batch=3) == ("batch", 3)
    assert result("train_here.py:with_both", batch=3) == (3, "fp32")
    assert result("train_here.py:with_both", 3, "bf16") == (3, "bf16")
    assert result("train_here.py:with_anything", 3) == {"batch": 3}


def test_a_given_batch_is_the_number_of_samples(folder: Path) -> None:
    assert resolve("train_here.py:with_batch", 3).samples == 3
    assert resolve("train_here.py:with_batch").samples is None


def test_a_suite_model_has_its_own_batch_and_unit() -> None:
    model = suite.benchmark("gpt2")
    target = resolve("gpt2")
    assert target.name == f"gpt2, batch {model.default_batch}, fp32"
    assert target.samples == model.default_batch * 1024
    assert target.unit == "tokens"
    assert resolve("GPT-2", 2, "bf16").samples == 2048


def test_a_suite_model_wins_over_a_folder_of_its_name(folder: Path) -> None:
    (folder / "resnet50").mkdir()
    assert resolve("resnet50").samples == suite.benchmark("resnet50").default_batch


def test_a_saved_trace_is_its_own_target(folder: Path) -> None:
    step().save(folder / "step.json.gz")
    target = resolve("step.json.gz")
    assert target.trace == step()
    assert (target.name, target.samples, target.make_step) == ("step.json.gz", 32, None)


def test_a_timm_model_is_named_but_not_made_before_it_is_traced() -> None:
    target = resolve("timm:resnet18", 4)
    assert target.name == "timm:resnet18, batch 4, fp32"
    assert target.samples == 4


def test_files_are_not_read_before_they_are_traced(folder: Path) -> None:
    (folder / "broken.py").write_text("1/0")
    assert resolve("broken.py:f").make_step is not None


def test_the_functions_that_there_are_are_listed(folder: Path) -> None:
    with pytest.raises(UnknownName, match=r"it has plain, with_anything, with_batch, with_both"):
        result("train_here.py:plian")


def test_an_error_on_import_names_the_innermost_line_of_ones_own(folder: Path) -> None:
    (folder / "helper.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(InvalidInput, match=r"ZeroDivisionError: division by zero .*helper\.py:2"):
        result("train_here.py:plain")


# Decoders of any size.


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
