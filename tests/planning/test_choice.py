"""The order of GPUs: never a GPU on which the step does not fit before one on which it does."""

from __future__ import annotations

from made import step

from wavecast.planning.choice import fastest_first, fitting_first
from wavecast.steps.prediction import Prediction, predict

LARGE = step(state_bytes=100 << 20)
"""A step that needs 20 GiB."""


def ids(predictions: list[Prediction]) -> list[str]:
    return [prediction.device.id for prediction in predictions]


def test_gpus_keep_their_order_but_those_too_small_come_last() -> None:
    rows = [predict(LARGE, gpu) for gpu in ("t4", "l4", "gtx-980", "h100-sxm-80gb")]
    assert ids(fitting_first(rows)) == ["l4", "h100-sxm-80gb", "t4", "gtx-980"]


def test_the_fastest_gpus_come_first_but_those_too_small_last() -> None:
    rows = fastest_first(predict(LARGE, gpu) for gpu in ("t4", "l4", "gtx-980", "h100-sxm-80gb"))
    assert [row.fits for row in rows] == [True, True, False, False]
    for some in (rows[:2], rows[2:]):
        assert some[0].seconds <= some[1].seconds
