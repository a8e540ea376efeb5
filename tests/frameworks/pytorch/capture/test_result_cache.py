"""Which ops torch computes only once, however often a step runs them."""

from __future__ import annotations

from typing import Any

import pytest
from networks import calls_of, training
from torch import nn

from wavecast.frameworks.pytorch.capture import capture, placement


def test_norms_of_equal_shapes_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the values of their running statistics are known, which start as zeros and ones."""
    learned: list[str] = []
    learn = placement.ResultCache.learn

    def counted(cache: Any, key: Any, *others: Any) -> Any:
        learned.append(str(key[0][0]))
        return learn(cache, key, *others)

    monkeypatch.setattr(placement.ResultCache, "learn", counted)

    def make_model() -> Any:
        layers = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))]
        return nn.Sequential(*layers)

    trace = capture(training(make_model, (2, 8, 4, 4)))
    assert len(calls_of(trace, "aten.cudnn_batch_norm_backward")) == 4
    assert learned.count("aten.cudnn_batch_norm_backward.default") == 1
