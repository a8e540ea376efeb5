"""A measured rate of a product: what stands in for one, and what models make of it."""

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
    said = LEARNED.predict(CALIBRATED[ops.Unit.FP32], of)
    assert said is not None
    return said.seconds


@pytest.mark.parametrize("times", [0.8, 1.0, 1.25])
def test_the_square_product_then_takes_what_was_measured(times: float) -> None:
    known = calibrated(GPU, times, LEARNED)
    assert seconds(known) == pytest.approx(seconds(GPU) / times, rel=0.02)


def test_products_are_compared_with_what_is_said_of_them() -> None:
    op = make.linear(4096, 2048, 1024, bias=False)
    said = LEARNED.predict(op, GPU)
    assert said is not None
    row = OpRow((op,), GPU.id, said.seconds / 2, "neusight")
    assert shortest_side(row) == 1024
    assert list(faster([row], GPU, LEARNED)) == [pytest.approx(2.0)]
