"""Which predictor of op times, or scaler of measurements, the options of a command ask for."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from wavecast.cli.app import SetupName
from wavecast.cli.steps import is_measured
from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import Target

if TYPE_CHECKING:
    from wavecast import Predictor, Scaler


class PredictorName(StrEnum):
    """The predictors of ops, and the scalers of measured ones, by name."""

    LEARNED = "learned"
    ATTAINABLE = "attainable"
    ROOFLINE = "roofline"
    MLP = "mlp"
    HABITAT = "habitat"
    WAVE = "wave"
    DAYDREAM = "daydream"


SCALERS = (PredictorName.HABITAT, PredictorName.WAVE, PredictorName.DAYDREAM)
"""Those that need a measured step."""


def precision_scaler(target: Target, precision: str | None) -> Scaler | None:
    """The scaler that takes a measured step to another precision; None where there is no need."""
    if precision is None or not is_measured(target):
        return None
    from wavecast.predictors.mixed_precision import MixedPrecision

    return MixedPrecision.shipped(precision)


def _published_scaler(
    setup: SetupName,
    name: PredictorName | None,
    precision: str | None,
    models: list[Path] | None,
) -> Scaler:
    """The scaler of a published setup, followed by Daydream's rule if a precision is given."""
    from wavecast.predictors.mixed_precision import MixedPrecision
    from wavecast.predictors.mlp.predictor import Mlp
    from wavecast.predictors.published import published_setup

    if name is not None:
        raise InvalidInput(f"--setup {setup} has its own predictor; leave --predictor out")
    scaler = published_setup(setup).scaler(Mlp.read(models) if models else None)
    return scaler if precision is None else MixedPrecision.daydream(precision, scaler)


def _daydream(precision: str | None) -> Scaler:
    from wavecast.predictors.mixed_precision import MixedPrecision

    if precision is None:
        raise InvalidInput(
            "Daydream's rule takes a float32 measurement to half precision; say which with "
            "--precision bf16 or fp16"
        )
    return MixedPrecision.daydream(precision)


def chosen_predictor(
    name: PredictorName | None,
    target: Target,
    precision: str | None,
    models: list[Path] | None,
    setup: SetupName | None = None,
) -> Predictor | Scaler | None:
    """The predictor that the options ask for. None to let the library choose."""
    if setup is not None:
        return _published_scaler(setup, name, precision, models)
    if models and name not in (PredictorName.MLP, PredictorName.HABITAT):
        raise InvalidInput("--model is for --predictor mlp or habitat, or for --setup habitat")
    if name is PredictorName.DAYDREAM:
        return _daydream(precision)
    if (scaler := precision_scaler(target, precision)) is not None:
        if name is not None:
            raise InvalidInput(
                "--precision with a measured trace has its own predictor; leave --predictor out, "
                "or take --predictor daydream"
            )
        return scaler
    return None if name is None else _named_predictor(name, models)


def _named_predictor(name: PredictorName, models: list[Path] | None) -> Predictor | Scaler:
    match name:
        case PredictorName.LEARNED:
            from wavecast.predictors.learned.predictor import Learned

            return Learned.shipped()
        case PredictorName.ATTAINABLE:
            from wavecast.predictors.attainable import Attainable

            return Attainable.shipped()
        case PredictorName.ROOFLINE:
            from wavecast.predictors.roofline import Roofline

            return Roofline()
        case PredictorName.WAVE:
            from wavecast.predictors.wave import WaveScaling

            return WaveScaling()
    from wavecast.predictors.habitat import Habitat
    from wavecast.predictors.mlp.predictor import Mlp

    networks = Mlp.read(models) if models else Mlp.shipped()
    return networks if name is PredictorName.MLP else Habitat(networks)
