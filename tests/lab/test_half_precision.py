"""Daydream's rule on steps that were measured in both precisions."""

from __future__ import annotations

import pytest

from lab.measured import campaigns
from lab.score.half_precision import errors
from wavecast.predictors.habitat import MixedPrecision
from wavecast.traces.kernel_names import is_gemm_or_convolution


def test_the_rule_finds_the_convolutions_of_resnet() -> None:
    """Without kernels named dgrad and wgrad alone, it was off by 21%."""
    traces = {
        name: trace
        for name, trace in campaigns.traces("measured").items()
        if "resnet50_b32" in name
    }
    [error] = errors(traces, MixedPrecision.daydream("bf16")).values()
    assert error == pytest.approx(0.07, abs=0.01)


@pytest.mark.parametrize(
    "name", ["cudnn::cnn::dgrad_engine<float>", "cudnn::cnn::wgrad_alg0_engine<float>"]
)
def test_gradients_of_convolutions_are_convolutions(name: str) -> None:
    assert is_gemm_or_convolution(name)
