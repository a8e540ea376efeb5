"""The order in which predictions are listed: GPUs on which the step does not fit come last."""

from __future__ import annotations

from collections.abc import Iterable

from wavecast.steps.prediction import Prediction


def fitting_first(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The predictions in the same order, but GPUs with too little memory come last."""
    return sorted(predictions, key=lambda prediction: prediction.fits is False)


def fastest_first(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The predictions from the fastest GPU on, but GPUs with too little memory come last."""
    return fitting_first(sorted(predictions, key=lambda prediction: prediction.seconds))
