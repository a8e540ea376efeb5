"""How a step is predicted: the options of the host and of predictors, and what they choose."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavecast.cli.options.groups import grouped
from wavecast.errors import InvalidInput
from wavecast.targets.targets import Target, Trait

if TYPE_CHECKING:
    from wavecast import Predictor, Scaler


class By(StrEnum):
    """The ways to break down the GPU's time."""

    OP = "op"
    MODULE = "module"
    LINE = "line"


class SetupName(StrEnum):
    """The setups as published in a paper."""

    HABITAT = "habitat"


class Equation(StrEnum):
    """Habitat's two equations of wave scaling."""

    WHOLE_WAVES = "1"
    MANY_WAVES = "2"


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


PredictorOption = Annotated[
    PredictorName | None,
    typer.Option(
        "--predictor",
        help="The predictor of op times (learned, attainable, roofline, mlp), or the method that "
        "scales a measurement (habitat, wave, or daydream with --precision); the most accurate "
        "one by default.",
    ),
]
SetupOption = Annotated[
    SetupName | None,
    typer.Option(
        "--setup",
        help="Scale a measurement as published: habitat takes its paper's clocks, bandwidths, "
        "prices and networks (--model), and Daydream's rule for --precision.",
    ),
]
EquationOption = Annotated[
    Equation | None,
    typer.Option(
        "--equation",
        help="With --setup habitat or --predictor wave: Habitat's equation 2, for many waves (the "
        "default), or 1, in whole waves.",
    ),
]
ModelOption = Annotated[
    list[Path] | None,
    typer.Option("--model", help="Your own networks (from wavecast fit) for mlp and habitat."),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="reference|mine|NAME|FILE",
        help="The host that issues the ops: the shipped reference, this machine, another that "
        "wavecast calibrate measured (by name or file), or one of a usual kind, such as desktop, "
        "workstation or dgx-a100 (wavecast calibrate --list). By default a measured step keeps its "
        "own host; others use one that was calibrated with the same GPU, else the reference.",
    ),
]
FactorOption = Annotated[
    float, typer.Option("--host-factor", help="Multiply all times of the host by this.")
]
GraphOption = Annotated[
    bool,
    typer.Option(
        "--cuda-graph",
        help="Assume that the step is replayed as one CUDA graph; with --parallel each micro-batch "
        "of a rank, and in a pipeline each of its passes.",
    ),
]


@dataclass(frozen=True)
class HostOptions:
    """How ops are issued, as the user gave it."""

    host: str | None = None
    host_factor: float = 1.0
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.host_factor < math.inf:
            raise InvalidInput(
                f"--host-factor {self.host_factor:g}: it is above 0, as in 0.5 for a host that is "
                "twice as fast; the time of the GPU alone is the step times its share, GPU busy"
            )

    def given(self) -> dict[str, object]:
        """The values that differ from their defaults, by option; None for the others."""
        return {
            "--host": self.host,
            "--host-factor": None if self.host_factor == 1 else self.host_factor,
            "--cuda-graph": self.cuda_graph or None,
        }

    def arguments(self) -> dict[str, Any]:
        """The arguments of `wavecast.predict`."""
        return {
            "host": self.host,
            "host_factor": self.host_factor,
            "graphed": self.cuda_graph,
        }


NO_HOST_OPTIONS = HostOptions()


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives a command the options of `HostOptions`, as its parameter `issuing`."""
    options = {"host": HostOption, "host_factor": FactorOption, "cuda_graph": GraphOption}
    return grouped(command, "issuing", HostOptions, options)


OriginOption = Annotated[
    str | None,
    typer.Option("--origin", help="The GPU of the measurement, if the trace does not name it."),
]
ByOption = Annotated[
    By | None, typer.Option("--by", help="Also break the GPU's time down by op, module or line.")
]
DepthOption = Annotated[
    int,
    typer.Option("--depth", min=1, help="With --by module: how many names of a path are kept."),
]


def refuse_scaling(
    target: Target,
    origin: str | None,
    predictor: PredictorName | None = None,
    setup: SetupName | None = None,
) -> None:
    """Refuse options that scale a measurement, if the step of a target was not measured."""
    if Trait.MEASURED in target.traits:
        return
    scaler = f"--predictor {predictor}" if predictor in SCALERS else None
    given = "--origin" if origin is not None else None, scaler, setup and f"--setup {setup}"
    for option in given:
        if option is not None:
            raise InvalidInput(
                f"{option} is for measured steps, and {target.name} was not measured, so there is "
                "nothing to scale; leave it out, or measure the step first (wavecast measure)"
            )


def precision_scaler(target: Target, precision: str | None) -> Scaler | None:
    """The scaler that takes a measured step to another precision; None where there is no need."""
    if precision is None or Trait.MEASURED not in target.traits:
        return None
    from wavecast.predictors.habitat import MixedPrecision

    return MixedPrecision.shipped(precision)


def _published_scaler(
    setup: SetupName,
    name: PredictorName | None,
    precision: str | None,
    models: list[Path] | None,
    equation: Equation | None,
) -> Scaler:
    """The scaler of a published setup, followed by Daydream's rule if a precision is given."""
    from wavecast.predictors.habitat import MixedPrecision, published_setup
    from wavecast.predictors.mlp import Mlp

    if name is not None:
        raise InvalidInput(f"--setup {setup} has its own predictor; leave --predictor out")
    whole_waves = equation is Equation.WHOLE_WAVES
    networks = Mlp.read(models) if models else None
    scaler = published_setup(setup).scaler(networks, whole_waves=whole_waves)
    return scaler if precision is None else MixedPrecision.daydream(precision, scaler)


def _daydream(precision: str | None) -> Scaler:
    from wavecast.predictors.habitat import MixedPrecision

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
    equation: Equation | None = None,
) -> Predictor | Scaler | None:
    """The predictor that the options ask for. None to let the library choose."""
    if setup is not None:
        return _published_scaler(setup, name, precision, models, equation)
    if equation is not None and name is not PredictorName.WAVE:
        raise InvalidInput("--equation is for --setup habitat or --predictor wave")
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
    return None if name is None else _named_predictor(name, models, equation)


def _named_predictor(
    name: PredictorName, models: list[Path] | None, equation: Equation | None
) -> Predictor | Scaler:
    match name:
        case PredictorName.LEARNED:
            from wavecast.predictors.learned.predictor import Learned

            return Learned.shipped()
        case PredictorName.ATTAINABLE:
            from wavecast.predictors.attainable import Attainable

            return Attainable.shipped()
        case PredictorName.ROOFLINE:
            from wavecast.predictors.attainable import Roofline

            return Roofline()
        case PredictorName.WAVE:
            from wavecast.predictors.wave import WaveScaling

            return WaveScaling(whole_waves=equation is Equation.WHOLE_WAVES)
    from wavecast.predictors.habitat import Habitat
    from wavecast.predictors.mlp import Mlp

    networks = Mlp.read(models) if models else Mlp.shipped()
    return networks if name is PredictorName.MLP else Habitat(networks)
