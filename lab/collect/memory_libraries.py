"""Loads what the steps of `memory_reality` need, once, in the process that all others fork from."""

from __future__ import annotations

from importlib import import_module

# In this order: steps declare what torchvision lacks in a torch without CUDA.
for _name in ("lab.steps.memory", "torchvision", "wavecast.frameworks.pytorch.measurement.memory"):
    import_module(_name)
_transformers = import_module("transformers")
for _name in ("Bert", "GPT2", "Llama", "T5", "ViT", "OPT"):
    getattr(_transformers, f"{_name}Model")
