"""The order of GPUs: never a GPU on which the step does not fit before one on which it does."""

from __future__ import annotations

import dataclasses

from made import step

from wavecast.steps.prediction import Prediction, comparable, in_order
from wavecast.steps.request import predict

LARGE = step(state_bytes=100 << 20)
"""A step that needs 20 GiB."""


def ids(predictions: list[Prediction], **rule: bool) -> list[str]:
    return [row.device.id for row in in_order(predictions, lambda row: row, **rule)]


def test_gpus_keep_their_order_but_those_too_small_come_last() -> None:
    rows = [predict(LARGE, gpu) for gpu in ("t4", "l4", "gtx-980", "h100-sxm-80gb")]
    kept = ids(rows, by_speed=False, bounds_last=False)
    assert kept == ["l4", "h100-sxm-80gb", "t4", "gtx-980"]


def test_the_fastest_gpus_come_first_but_those_too_small_last() -> None:
    given = [predict(LARGE, gpu) for gpu in ("t4", "l4", "gtx-980", "h100-sxm-80gb")]
    rows = in_order(given, lambda row: row)
    assert [row.fits for row in rows] == [True, True, False, False]
    for some in (rows[:2], rows[2:]):
        assert some[0].seconds <= some[1].seconds


def test_gpus_on_which_much_is_unknown_are_not_ranked() -> None:
    gpus = ("k80", "t4", "h100-sxm-80gb", "l4")
    rows = [predict(step(), gpu, host_factor=0) for gpu in gpus]
    nothing = tuple(None for _ in rows[0].answers)
    unknown = [dataclasses.replace(row, answers=nothing) for row in rows]
    assert not any(map(comparable, unknown))
    assert ids(unknown) == ["k80", "t4", "h100-sxm-80gb", "l4"]
    some = [unknown[0], rows[1], unknown[2], rows[3]]
    assert ids(some) == ["l4", "t4", "k80", "h100-sxm-80gb"]
