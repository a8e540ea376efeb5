"""A simulated measured rate of a GPU, and how the learned models use it."""

from __future__ import annotations

import pytest

from lab.measured import op_makers as make
from lab.measured.op_row import OpRow
from lab.score.calibrated import calibrated, faster, shortest_side
from wavecast import Device, device, ops
from wavecast.predictors.learned.calibration import CALIBRATED
from wavecast.predictors.learned.predictor import Learned

GPU = device("rtx-3090")
LEARNED = Learned.shipped()


def seconds(of: Device) -> float:
    estimate = LEARNED.predict(CALIBRATED[ops.Unit.FP32], of)
    assert estimate is not None
    return estimate.seconds


@pytest.mark.parametrize("times", [0.8, 1.0, 1.25])
def test_the_square_product_takes_the_measured_time(times: float) -> None:
    gpu = calibrated(GPU, times, LEARNED)
    assert seconds(gpu) == pytest.approx(seconds(GPU) / times, rel=0.02)


def test_products_are_compared_with_their_predictions() -> None:
    op = make.linear(4096, 2048, 1024, bias=False)
    estimate = LEARNED.predict(op, GPU)
    assert estimate is not None
    row = OpRow((op,), GPU.id, estimate.seconds / 2, "neusight")
    assert shortest_side(row) == 1024
    assert list(faster([row], GPU, LEARNED)) == [pytest.approx(2.0)]
