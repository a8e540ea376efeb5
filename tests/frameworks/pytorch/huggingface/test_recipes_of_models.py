"""What an `hf:` target decides before a model is built: task, sizes, precision, adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wavecast.errors import InvalidInput, UnknownName
from wavecast.frameworks.pytorch.huggingface.options import Lora, ModelOptions, lora_of
from wavecast.frameworks.pytorch.huggingface.recipes import TrainingRecipe, recipe_of
from wavecast.targets.targets import resolve, smaller_variants


def recipe(
    name: str, batch: int | None = None, precision: str | None = None, **options: Any
) -> TrainingRecipe:
    return recipe_of(name, batch, precision, ModelOptions(**options))


def of_config(folder: Path, **values: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


@pytest.mark.parametrize(
    ("name", "task", "sequence", "samples", "unit"),
    [
        ("llama-3.1-8b", "causal-lm", 2048, 2 * 2048, "tokens"),
        ("gpt2", "causal-lm", 1024, 2 * 1024, "tokens"),
        ("bert-base-uncased", "masked-lm", 512, 2 * 512, "tokens"),
        ("vit-base-patch16-224", "image-classification", None, 2, "samples"),
        ("whisper-small", "speech-seq2seq", 128, 2, "samples"),
        ("sdxl-unet", "denoising", None, 2, "samples"),
    ],
)
def test_the_config_names_the_task(
    name: str, task: str, sequence: int | None, samples: int, unit: str
) -> None:
    training = recipe(name, batch=2)
    assert (training.task.name, training.sequence) == (task, sequence)
    assert (training.samples, training.task.unit) == (samples, unit)


@pytest.mark.parametrize(
    ("architecture", "model_type", "task"),
    [
        ("T5ForConditionalGeneration", "t5", "seq2seq"),
        ("BertForSequenceClassification", "bert", "sequence-classification"),
        ("BertForTokenClassification", "bert", "token-classification"),
        ("BertForQuestionAnswering", "bert", "question-answering"),
        ("BertForPreTraining", "bert", "masked-lm"),
    ],
)
def test_tasks_by_architecture(
    architecture: str, model_type: str, task: str, tmp_path: Path
) -> None:
    name = of_config(tmp_path, architectures=[architecture], model_type=model_type)
    assert recipe(name).task.name == task


@pytest.mark.parametrize("architecture", ["LlamaModel", "LlavaForConditionalGeneration"])
def test_a_task_is_not_guessed(architecture: str, tmp_path: Path) -> None:
    name = of_config(tmp_path, architectures=[architecture], model_type="llama")
    with pytest.raises(InvalidInput, match=f"architectures: {architecture}.*give --task"):
        recipe(name)
    assert recipe(name, task="causal-lm").task.name == "causal-lm"


def test_sequences_are_as_long_as_the_model_allows(tmp_path: Path) -> None:
    assert recipe("bert-base-uncased", seq=128).sequence == 128
    with pytest.raises(InvalidInput, match="takes at most 512 tokens, not 513"):
        recipe("bert-base-uncased", seq=513)
    t5 = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "n_positions": 512}
    name = of_config(tmp_path, **t5, relative_attention_num_buckets=32)
    assert recipe(name, seq=2048).sequence == 2048


@pytest.mark.parametrize(
    ("text", "lora"),
    [
        ("16", Lora(16)),
        ("r=16", Lora(16)),
        ("r=16,alpha=32,dropout=0.05", Lora(16, 32.0, 0.05)),
        ("alpha=32, r=4", Lora(4, 32.0)),
    ],
)
def test_adapters_are_written_as_sizes(text: str, lora: Lora) -> None:
    assert lora_of(ModelOptions(lora=text)) == lora


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ({}, "fp32"),
        ({"precision": "bf16"}, "bf16"),
        ({"weights": "bf16"}, "bf16 weights"),
        ({"weights": "bf16", "precision": "bf16"}, "bf16, bf16 weights"),
        ({"qlora": True}, "bf16, QLoRA r=8"),
        ({"lora": "r=4", "checkpointing": True}, "fp32, LoRA r=4, checkpointing"),
    ],
)
def test_the_title_says_what_is_trained(given: dict[str, Any], title: str) -> None:
    assert recipe("gpt2", **given).title == f"hf:gpt2, batch 1, 1024 tokens, {title}"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt2", {"task": "poetry"}, "unknown task 'poetry'; known: causal-lm"),
        ("gpt2", {"task": "denoising"}, "is for U-Nets"),
        ("sdxl", {"task": "causal-lm"}, "trained for denoising alone"),
        ("sdxl", {"qlora": True}, "--qlora is for models of transformers"),
        ("sdxl", {"seq": 77}, "--seq is for tasks with tokens"),
        ("gpt2", {"seq": 0}, "at least 1"),
        ("gpt2", {"weights": "int3"}, "unknown precision 'int3' of --weights; known: fp32"),
        ("gpt2", {"qlora": True, "weights": "bf16"}, "leave --weights out"),
        ("gpt2", {"targets": "c_attn"}, "give --lora"),
        ("gpt2", {"lora": "rank=4"}, "write r=16"),
        ("gpt2", {"lora": "r=4,r=5"}, "write r=16"),
        ("gpt2", {"lora": "r=1.5"}, "cannot read --lora 'r=1.5'"),
        ("gpt2", {"lora": "r=0"}, "r must be at least 1"),
        ("gpt2", {"lora": "r=1,dropout=1"}, "below 1"),
    ],
)
def test_options_that_make_no_sense(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidInput, UnknownName), match=message):
        recipe(name, **options)


def test_other_targets_refuse_the_options() -> None:
    options = ModelOptions(lora="r=8", checkpointing=True)
    with pytest.raises(InvalidInput, match="--lora, --checkpointing: only for Hugging Face models"):
        resolve("resnet50", None, None, options)


def test_smaller_variants_keep_the_options() -> None:
    target = resolve("hf:gpt2", 8, None, ModelOptions(weights="bf16", lora="r=8"))
    half = smaller_variants(target)["batch 4, accumulated twice"]
    assert half.target.name == "hf:gpt2, batch 4, 1024 tokens, bf16 weights, LoRA r=8"


def test_other_networks_of_diffusers_are_refused(tmp_path: Path) -> None:
    name = of_config(tmp_path, _class_name="FluxTransformer2DModel")
    with pytest.raises(InvalidInput, match="only UNet2DConditionModel"):
        recipe(name)
