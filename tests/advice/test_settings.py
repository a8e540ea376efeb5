"""The settings that a choice of GPUs searches, as far as the user allows them."""

from __future__ import annotations

import pytest

from wavecast.advice.settings import StepSettings, allowed_names
from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.options import ModelOptions
from wavecast.hardware.devices import device
from wavecast.targets.sources import target_source
from wavecast.targets.targets import resolve


def settings(text: str, allowed: str = "", **options: object) -> StepSettings:
    target = resolve(text, 1, None, ModelOptions(**options))  # type: ignore[arg-type]
    return StepSettings(target, allowed_names(allowed), target_source)


def names(found: StepSettings) -> list[str]:
    return [
        way.name
        for setting in found.searched
        for way in (setting, setting.smaller)
        if way is not None
    ]


def test_by_default_nothing_changes_the_numbers() -> None:
    assert names(settings("hf:gpt2")) == ["", "checkpointing"]
    assert names(settings("hf:gpt2", checkpointing=True)) == [""]


def test_precision_is_what_the_gpu_has() -> None:
    found = settings("gpt2", "precision").searched
    assert [setting.name for setting in found] == ["", "bf16 autocast", "fp16 autocast"]
    for gpu, wanted in (("t4", "fp16"), ("l4", "bf16")):
        suited = [setting.changes for setting in found if setting.suits(device(gpu))]
        assert suited == [(), (wanted,)]


def test_adapters_are_searched_where_they_are_allowed() -> None:
    found = names(settings("hf:gpt2", "lora,qlora"))
    assert found[2:] == ["LoRA r=16", "LoRA r=16, checkpointing", "QLoRA with checkpointing"]
    assert names(settings("hf:gpt2", "lora", lora="r=8")) == ["", "checkpointing"]
    assert names(settings("hf:gpt2", "qlora", lora="r=8"))[2:] == ["QLoRA with checkpointing"]
    with pytest.raises(InvalidInput, match="adapters are for hf: models"):
        settings("resnet50", "lora")


def test_compiled_code_comes_last_and_only_if_allowed() -> None:
    assert settings("gpt2").compiled(()) is None
    way = settings("gpt2", "compile").compiled(("bf16",))
    assert way is not None
    assert way.name == "bf16 autocast, torch.compile"


def test_a_setting_is_traced_as_it_says() -> None:
    pytest.importorskip("torch")
    [_, narrow, _] = settings("dcgan", "precision").searched
    trace = narrow.trace_for(device("l4"), 2)
    assert any(t.dtype == "bfloat16" for op in trace.counts for t in op.inputs)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidInput, match="--allow speed: there are precision"):
        allowed_names("speed")
