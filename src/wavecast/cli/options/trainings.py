"""The options of a whole training, which several commands share: epochs, tokens, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, fields

from wavecast.cli.options.groups import option_group
from wavecast.errors import InvalidInput
from wavecast.frameworks.step_source import units_of
from wavecast.frameworks.targets import Target
from wavecast.planning.cost import TrainingPlan
from wavecast.planning.durations import seconds_of

LENGTHS = ("epochs", "samples", "tokens", "iterations")


@dataclass(frozen=True)
class TrainingOptions:
    """The options as the user gave them."""

    epochs: float | None = None
    samples: float | None = None
    tokens: float | None = None
    iterations: float | None = None
    dataset_samples: float | None = None
    sample_tokens: float | None = None
    global_batch: int | None = None
    validation_samples: float | None = None
    validation_time: str | None = None
    validation_every: float | None = None
    checkpoint_time: str | None = None
    checkpoint_every: float | None = None
    startup_time: str | None = None

    def plan(self, target: Target | None = None) -> TrainingPlan | None:
        """The training; None if no option says how long it is.

        Args:
            target: the step. Samples are those of its batch: sequences, also where the step counts
                tokens.

        Raises:
            InvalidInput: options contradict each other, or one is missing.
        """
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        lengths = [_option(name) for name in given if name in LENGTHS]
        if len(lengths) > 1:
            raise InvalidInput(f"{' and '.join(lengths)} both say how long the training is")
        if not lengths:
            if given:
                raise InvalidInput(
                    f"{_option(given[0])} is for a whole training; say how long it is with one of "
                    f"{', '.join(map(_option, LENGTHS))}"
                )
            return None
        each = 1 if target is None else units_of(target)
        sequence = None if target is None else target.options.seq
        batch = self.global_batch
        return TrainingPlan(
            iterations=self.iterations,
            samples=None if self.samples is None else self.samples * each,
            tokens=self.tokens,
            epochs=self.epochs,
            dataset_samples=None if self.dataset_samples is None else self.dataset_samples * each,
            sample_tokens=self.sample_tokens or sequence,
            global_batch=None if batch is None else batch * each,
            validation_s=self._seconds("validation_time"),
            validation_samples=(self.validation_samples or 0.0) * each,
            validation_every=self.validation_every,
            checkpoint_s=self._seconds("checkpoint_time"),
            checkpoint_every=self.checkpoint_every,
            startup_s=self._seconds("startup_time"),
        )

    def _seconds(self, name: str) -> float:
        text = getattr(self, name)
        return 0.0 if text is None else seconds_of(text, _option(name))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


NO_TRAINING = TrainingOptions()

training_options = option_group(
    "training",
    TrainingOptions,
    {
        "epochs": "The epochs of the training; needs --dataset-samples.",
        "samples": "Or the samples that it sees in all.",
        "tokens": "Or the tokens that it sees in all.",
        "iterations": "Or its optimizer steps.",
        "dataset_samples": "The samples of an epoch.",
        "sample_tokens": "The tokens of a sample, for --tokens; --seq says it, too.",
        "global_batch": "The samples of one optimizer step on all GPUs; gradients are accumulated.",
        "validation_samples": "The samples of one validation, whose forward passes are predicted.",
        "validation_time": "Or the time of one validation, as in 5min.",
        "validation_every": "The steps between validations; once in an epoch by default.",
        "checkpoint_time": "How long one checkpoint stops the training, as in 30s.",
        "checkpoint_every": "The steps between checkpoints; once in an epoch by default.",
        "startup_time": "The time before the first step.",
    },
    "A whole training",
)
"""A decorator that gives a command the options of a training, as its parameter `training`."""
