"""Tests run as if torchvision were not installed: it has no build for the CPU torch they use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

sys.modules["torchvision"] = None  # type: ignore[assignment]


@pytest.fixture
def the_same_numbers_on_one_thread() -> Iterator[None]:
    """For tests that train: several threads get in each other's way on small models."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def transformers() -> Any:
    """Hugging Face's models, for which we do not need torchvision."""
    return pytest.importorskip("transformers")
