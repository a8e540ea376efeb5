"""A torchvision that cannot be imported is named, where transformers names only its own module."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

import pytest

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.huggingface.configs import naming_torchvision, torchvision_fault


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
