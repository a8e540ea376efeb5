"""The model, batch and GPU of a run: given by the user, or found among a log's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from wavecast.errors import InvalidInput, prefixed
from wavecast.runs.readers.text import number_of, whole_of
from wavecast.runs.readers.totals import RunTotals
from wavecast.runs.run import Run, check


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a run apart from its time. None when unknown."""

    model: str | None = None
    batch: int | None = None
    gpu: str | None = None
    gpus: int | None = None
    precision: str | None = None
    framework: str | None = None
    inner_modules: int | None = None

    def known(self) -> dict[str, Any]:
        """The known facts by name."""
        values = {name: getattr(self, name) for name in Facts.__slots__}
        return {name: value for name, value in values.items() if value is not None}

    def corrected(self, given: Given) -> Facts:
        """The facts with those that the user gives instead."""
        return replace(self, **given.known())


@dataclass(frozen=True, slots=True)
class Given(Facts):
    """The facts that the user gives. They replace those that the file says."""

    warm_up: int | None = None
    """How many iterations to drop. None to detect the end of warm-up."""
    metric: str | None = None
    """The metric whose times are used, if a file has several."""


def make_run(
    facts: Facts,
    given: Given,
    iterations: int,
    seconds: float,
    place: str,
    phase: str = "training",
    totals: RunTotals = RunTotals(),  # noqa: B008  (frozen)
) -> Run:
    """A checked run.

    Raises:
        InvalidInput: the model or the batch is unknown, or a value is impossible; says where.
    """
    corrected = facts.corrected(given)
    for name in ("model", "batch"):
        if getattr(corrected, name) is None:
            raise InvalidInput(
                f"{place}: does not say the {name}; give it as {name}=..., or --{name} on the "
                "command line"
            )
    known = {**corrected.known(), **totals.known()}
    with prefixed(f"{place}: "):
        run = Run(iterations=iterations, seconds=seconds, phase=phase, source=place, **known)
        return check(run)


# Names of these settings in scripts and frameworks, the most reliable first.
_GLOBAL_BATCH = (
    *("global_batch_size", "total_batch_size", "effective_batch_size", "total_train_batch_size"),
    "optimizer_batch_size",
)
_BATCH_OF_A_GPU = (
    *("per_device_train_batch_size", "per_gpu_train_batch_size", "batch_size_per_gpu"),
    *("micro_batch_size", "train_micro_batch_size_per_gpu", "local_batch_size"),
)
_BATCH = ("train_batch_size", "batch_size", "batch", "bs")
_GPUS = ("world_size", "num_gpus", "n_gpus", "gpus", "n_gpu", "num_devices", "devices")
_ACCUMULATED = ("gradient_accumulation_steps", "accumulate_grad_batches", "gradient_accumulation")
_MODELS = ("model_name", "model", "arch", "architecture", "model_name_or_path", "_name_or_path")
_PRECISIONS = {
    **{"fp32": "fp32", "float32": "fp32", "32": "fp32", "32-true": "fp32"},
    **{"tf32": "tf32", "fp16": "fp16", "float16": "fp16", "16": "fp16"},
    **{"16-mixed": "fp16", "16-true": "fp16", "bf16": "bf16", "bfloat16": "bf16"},
    **{"bf16-mixed": "bf16", "bf16-true": "bf16"},
}


def find_facts(settings: Mapping[str, object], given: Given, framework: str | None) -> Facts:
    """The facts among a training's settings: arguments, hyperparameters or parameters.

    The batch of one GPU is multiplied only if the number of GPUs is known. If a setting may mean
    the batch of one GPU or of all, and there are several GPUs, the batch stays unknown.
    """
    lower = {name.lower().rsplit("/", 1)[-1]: value for name, value in settings.items()}
    gpus = given.gpus or _first_whole(lower, _GPUS)
    model = next((v for name in _MODELS if isinstance(v := lower.get(name), str) and v), None)
    return Facts(
        model=model,
        batch=_batch(lower, gpus),
        gpus=gpus,
        precision=_precision(lower),
        framework=framework,
    )


def _batch(settings: Mapping[str, object], gpus: int | None) -> int | None:
    if (whole_batch := _first_whole(settings, _GLOBAL_BATCH)) is not None:
        return whole_batch
    accumulated = _first_whole(settings, _ACCUMULATED) or 1
    if (batch_of_a_gpu := _first_whole(settings, _BATCH_OF_A_GPU)) is not None:
        return None if gpus is None else batch_of_a_gpu * gpus * accumulated
    batch = _first_whole(settings, _BATCH)
    return batch if accumulated == 1 and (gpus or 1) == 1 else None


def _precision(settings: Mapping[str, object]) -> str | None:
    for name in ("bf16", "fp16", "tf32", "amp"):
        if str(settings.get(name)).lower() in ("true", "1"):
            return "fp16" if name == "amp" else name
    for name in ("precision", "dtype", "mixed_precision"):
        if precision := _PRECISIONS.get(str(settings.get(name)).lower()):
            return precision
    return None


def _first_whole(settings: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    for name in names:
        number = whole_of(settings.get(name))
        if number is None and (value := number_of(settings.get(name))) is not None:
            number = int(value) if value.is_integer() else None
        if number is not None and number > 0:
            return number
    return None
