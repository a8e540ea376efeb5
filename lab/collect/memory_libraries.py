"""Import the libraries of `memory_reality` once, in the process from which workers are forked."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from lab.steps.libraries import import_torchvision

if find_spec("torchvision"):  # only `--pretend` works without it
    import_torchvision()
for _name in ("lab.steps.memory", "wavecast.frameworks.pytorch.measurement.memory"):
    import_module(_name)
_transformers = import_module("transformers")
for _name in ("Bert", "GPT2", "Llama", "T5", "ViT", "OPT"):
    getattr(_transformers, f"{_name}Model")
