"""Where the config of an `hf:` target is looked for, and what is said when it is not there."""

from __future__ import annotations

import importlib
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tiny_configs import BERT

from wavecast.errors import CaptureError, InvalidInput, UnknownName
from wavecast.frameworks.pytorch.huggingface.configs import (
    config_of,
    naming_torchvision,
    presets,
    torchvision_fault,
)
from wavecast.frameworks.pytorch.huggingface.recipes import TASKS, longest_sequence, task_of

TINY = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64}
UNET = {"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.30.0", "sample_size": 64}


def written(path: Path, values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Hugging Face."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "hub"


def test_a_file_or_its_folder(tmp_path: Path) -> None:
    path = written(tmp_path / "model" / "config.json", TINY)
    for name in (str(path), str(path.parent)):
        config = config_of(name)
        assert (config.values, config.model_type, config.source) == (TINY, "llama", str(path))
        assert config.diffusion_class is None


def test_the_folder_of_a_pipeline_means_its_unet(tmp_path: Path) -> None:
    written(tmp_path / "model_index.json", {"_class_name": "StableDiffusionPipeline"})
    path = written(tmp_path / "unet" / "config.json", UNET)
    config = config_of(str(tmp_path))
    assert (config.source, config.diffusion_class) == (str(path), "UNet2DConditionModel")


def test_the_cache_gives_its_main_branch(cache: Path) -> None:
    repository = cache / "models--someone--tiny"
    newer = written(repository / "snapshots" / "b" / "config.json", {**TINY, "hidden_size": 2})
    main = written(repository / "snapshots" / "a" / "config.json", {**TINY, "hidden_size": 1})
    os.utime(main.parent, (1, 1))
    assert config_of("someone/tiny").source == str(newer)  # the newest, if no branch is named
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a\n")
    assert config_of("someone/tiny").source == str(main)


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_the_cache_is_where_the_environment_says(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    hub = tmp_path / "elsewhere" / ("huggingface/hub" if variable.startswith("XDG") else "")
    path = written(hub / "models--someone--tiny" / "snapshots" / "a" / "config.json", TINY)
    assert config_of("someone/tiny").source == str(path)


def test_the_cache_comes_before_a_preset(cache: Path) -> None:
    written(cache / "models--gpt2" / "snapshots" / "a" / "config.json", TINY)
    assert config_of("gpt2").values == TINY


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("META-LLAMA/llama-3.1-8b-instruct", "llama-3.1-8b"),
        ("sdxl", "sdxl-unet"),
    ],
)
def test_presets_have_several_names(name: str, preset: str) -> None:
    expected = next(known for known in presets() if known.name == preset)
    assert config_of(name).values == expected.config


def test_no_name_means_two_presets() -> None:
    names = [name.lower() for preset in presets() for name in preset.names]
    assert len(names) == len(set(names))


def test_the_page_lists_every_preset_and_task() -> None:
    page = Path(__file__).parents[4] / "docs" / "howto" / "predict-a-hugging-face-model.md"
    text = page.read_text(encoding="utf-8")
    assert not [preset.name for preset in presets() if f"| `{preset.name}` |" not in text]
    assert not [task for task in TASKS if f"`{task}`" not in text]


def test_an_unknown_name_tells_near_ones_and_how_to_get_it(cache: Path) -> None:
    with pytest.raises(UnknownName) as error:
        config_of("meta-llama/Llama-3.1-9B")
    for part in (
        *("llama-3.1-8b", str(cache), "Nothing is downloaded"),
        "hf download meta-llama/Llama-3.1-9B config.json",
    ):
        assert part in str(error.value)
    with pytest.raises(UnknownName, match="presets: bert-base-uncased, "):
        config_of("zzzz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not the config of a model"),
        ('{"hidden_size": 3}', "neither model_type .* nor _class_name"),
        ('{"_class_name": "StableDiffusionPipeline", "_diffusers_version": "1"}', "whole pipeline"),
    ],
)
def test_files_that_are_no_config(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        config_of(str(path))


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has no config\.json"):
        config_of(str(tmp_path))
    with pytest.raises(InvalidInput, match="there is no file"):
        config_of(str(tmp_path / "config.json"))
    with pytest.raises(InvalidInput, match="needs a name"):
        config_of(" ")


@pytest.mark.parametrize("named", [7, 0.5, True, {"a": 1}, [None, 3, [[]]], "BertForMaskedLM"])
def test_architectures_of_another_type_name_no_task(named: object, tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", {**BERT, "architectures": named})
    with pytest.raises(InvalidInput, match=r"architectures: none.*give --task"):
        task_of(config_of(str(path)), None)


@pytest.mark.parametrize("inner", [7, [], "x", True])
def test_a_text_config_of_another_type_says_no_length(inner: object, tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", {"model_type": "llava", "text_config": inner})
    assert longest_sequence(config_of(str(path))) is None


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_unknown(name: str) -> None:
    with pytest.raises(UnknownName, match="is no file or folder"):
        config_of(name)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 2001},
        {"n_layer": 2**40},
        {"num_local_experts": 10**6},
        {"depths": [2, 2, 10**6]},
        {"text_config": {"decoder_layers": 513}},
    ],
)
def test_a_model_of_very_many_parts_is_not_built(change: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", {**BERT, **change})
    with pytest.raises(InvalidInput, match=r"a model with more than 512 of them is not built"):
        config_of(str(path))


def test_a_large_vocabulary_and_many_experts_are_usual(tmp_path: Path) -> None:
    values = {**BERT, "vocab_size": 10**6, "num_experts": 512, "layer_norm_eps": 1e-12}
    assert config_of(str(written(tmp_path / "config.json", values))).values == values


def test_a_config_has_the_name_that_was_written(tmp_path: Path) -> None:
    path = str(written(tmp_path / "config.json", BERT))
    assert config_of(path).name == path


# A torchvision that cannot be imported is named, where transformers names only its own module.


def broken(name: str, *_: Any) -> Any:
    raise RuntimeError(f"operator {name}::nms does not exist\nmore")


def test_a_broken_torchvision_is_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "0.1")
    monkeypatch.setattr(importlib, "import_module", broken)
    said = "torchvision 0.1 cannot be imported: RuntimeError: operator torchvision::nms does not"
    with pytest.raises(CaptureError, match=said), naming_torchvision("hf:llama"):
        raise ModuleNotFoundError("Could not import module 'LlamaConfig'")


def test_other_faults_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "0.1")
    monkeypatch.setattr(importlib, "import_module", lambda _: None)
    assert torchvision_fault() is None
    with pytest.raises(ModuleNotFoundError, match="LlamaConfig"), naming_torchvision("hf:llama"):
        raise ModuleNotFoundError("Could not import module 'LlamaConfig'")
