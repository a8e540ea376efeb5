"""The order in which predictions are listed: GPUs on which the step does not fit come last."""

from __future__ import annotations

from collections.abc import Iterable

from wavecast.steps.prediction import Prediction
from wavecast.steps.unpredicted import TOO_MUCH


def comparable(prediction: Prediction) -> bool:
    """Whether enough of a step was predicted to compare its time with that on other GPUs."""
    return prediction.unpredicted_share <= TOO_MUCH


def fitting_first(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The predictions in the same order, but GPUs with too little memory come last."""
    return sorted(predictions, key=lambda prediction: prediction.fits is False)


def fastest_first(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The predictions from the fastest GPU on, but GPUs with too little memory come last.

    After them come those that are not `comparable`, in the order in which they were given.
    """
    rows = list(predictions)
    ranked = sorted(filter(comparable, rows), key=lambda prediction: prediction.seconds)
    return [*fitting_first(ranked), *(row for row in rows if not comparable(row))]
