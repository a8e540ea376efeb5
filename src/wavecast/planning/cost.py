"""What a whole training takes: hours, money and energy, with their ranges."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device
from wavecast.parallel.strategy import Parallel
from wavecast.planning.prices import Price
from wavecast.results import Shown
from wavecast.steps.prediction import Prediction
from wavecast.traces.step import Phase

TOKENS = "tokens"
"""The unit of a trace whose samples are tokens."""
_AMOUNTS = ("iterations", "samples", "tokens", "epochs")


@dataclass(frozen=True, slots=True)
class Ranged:
    """A number with its range.

    >>> Ranged(2.0, 1.0, 4.0).times(3)
    Ranged(value=6.0, low=3.0, high=12.0)
    """

    value: float
    low: float | None = None
    """The low end of the range; None where there is no range."""
    high: float | None = None

    def times(self, factor: float) -> Ranged:
        """The number and both ends, multiplied."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Ranged(self.value * factor, low, high)

    def plus(self, other: Ranged) -> Ranged:
        """The sum; the ends are added, since the errors have the same cause."""
        ends = ((self.low, other.low), (self.high, other.high))
        low, high = (None if a is None or b is None else a + b for a, b in ends)
        return Ranged(self.value + other.value, low, high)


def exactly(value: float) -> Ranged:
    """A number that is known: both ends are the number itself."""
    return Ranged(value, value, value)


_NONE = exactly(0.0)


@dataclass(frozen=True, slots=True)
class TrainingPlan(Shown):
    """What a whole training does, as its user states it. Its length is one of the first four.

    ```python
    TrainingPlan(epochs=90, dataset_samples=1_281_167, global_batch=256)
    TrainingPlan(tokens=20e9, sample_tokens=2048, global_batch=512)
    TrainingPlan(iterations=100_000, checkpoint_s=30, checkpoint_every=1000)
    ```
    """

    iterations: float | None = None
    """Optimizer steps."""
    samples: float | None = None
    """Samples (the unit of the trace) that are seen in all."""
    tokens: float | None = None
    epochs: float | None = None
    dataset_samples: float | None = None
    """The samples of an epoch."""
    sample_tokens: float | None = None
    """The tokens of a sample. Not needed for a trace that counts tokens."""
    global_batch: int | None = None
    """The samples of one optimizer step on all GPUs. None for those of the predicted step."""
    validation_s: float = 0.0
    """The time of one validation, as you state it."""
    validation_samples: float = 0.0
    """The samples of one validation, whose time is that of their forward passes."""
    validation_every: float | None = None
    """The optimizer steps between validations. None for once in an epoch."""
    checkpoint_s: float = 0.0
    """The time of one checkpoint during which the training stands still."""
    checkpoint_every: float | None = None
    """The optimizer steps between checkpoints. None for once in an epoch."""
    startup_s: float = 0.0
    """The time before the first step: imports, data, compilation."""

    def __post_init__(self) -> None:
        given = [name for name in _AMOUNTS if getattr(self, name) is not None]
        if len(given) != 1:
            stated = " and ".join(given) or "nothing"
            raise InvalidInput(
                "the length of a training is one of iterations, samples, tokens and epochs; "
                f"{stated} was given"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            least_allowed = 0.0 if field.default is not None else 1e-9
            if value is not None and not least_allowed <= value < 1e30:
                raise InvalidInput(f"{field.name} is {value!r}; it is a number above 0")
        if self.epochs is not None and self.dataset_samples is None:
            raise InvalidInput(
                "epochs need the number of samples of an epoch; give dataset_samples "
                "(--dataset-samples)"
            )


@dataclass(frozen=True, slots=True, repr=False)
class TrainingCost(Shown):
    """What a whole training takes on some GPUs; `training_cost` makes it.

    Ranges follow from the range of the step: its error is the same in every step, so that it does
    not average out. None where the step has no range.
    """

    device_id: str
    gpus: int
    steps: int
    """Optimizer steps."""
    accumulated: int
    """Micro-batches that each GPU runs in an optimizer step."""
    step_samples: float | None
    """Samples of one optimizer step on all GPUs. None when unknown."""
    step: Ranged
    """The time of one optimizer step, in seconds."""
    seconds: Ranged
    """The time of the whole training."""
    training_s: Ranged
    """The part of it in optimizer steps."""
    validation_s: Ranged
    checkpoint_s: Ranged
    startup_s: float
    energy_kwh: Ranged | None
    """The most that the GPUs can draw: their board power over the whole time. None if unknown."""
    offer: Price | None = None
    machines: int | None = None
    """How many machines are rented; they may have more GPUs than are used."""
    usd: Ranged | None = None
    """The money for the whole time. None without an offer."""
    uneven_s: Ranged = _NONE
    """The part of it for what some steps do more or less than the predicted one."""

    @property
    def hours(self) -> Ranged:
        """The time of the whole training in hours."""
        return self.seconds.times(1 / 3600)


def training_cost(
    prediction: Prediction, plan: TrainingPlan, offer: Price | None = None, uneven: Ranged = _NONE
) -> TrainingCost:
    """The time, energy and, with an offer, the money of a whole training.

    ```python
    p = wavecast.predict(trace, "l4")
    plan = wavecast.TrainingPlan(epochs=90, dataset_samples=1_281_167)
    cost = wavecast.training_cost(p, plan, wavecast.price("l4"))
    cost.hours.value, cost.usd.low, cost.usd.high
    ```

    A `global_batch` larger than that of the step is reached by gradient accumulation on one GPU;
    predict several GPUs with the right `microbatches`. Where some steps do more than the predicted
    one, `uneven` says how much longer their mean is.

    Raises:
        InvalidInput: the plan does not suit the step. The message says what would.
    """
    accumulated = _accumulated(prediction, plan)
    step = _step(prediction, accumulated)
    alone = prediction.samples
    samples = None if alone is None else alone * accumulated
    steps = _steps(plan, samples, prediction.trace.unit)
    training = step.times(steps)
    validation = _validation(prediction, plan).times(
        _times(steps, plan.validation_every, plan, samples, "validation")
        if plan.validation_s or plan.validation_samples
        else 0
    )
    checkpoint = exactly(plan.checkpoint_s).times(
        _times(steps, plan.checkpoint_every, plan, samples, "checkpoint")
        if plan.checkpoint_s
        else 0
    )
    more = uneven.times(steps)
    seconds = training.plus(more).plus(validation).plus(checkpoint).plus(exactly(plan.startup_s))
    gpus = prediction.gpus
    power_w = prediction.device.tdp_w
    return TrainingCost(
        device_id=prediction.device.id,
        gpus=gpus,
        steps=steps,
        accumulated=prediction.microbatches * accumulated,
        step_samples=samples,
        step=step,
        seconds=seconds,
        training_s=training,
        validation_s=validation,
        checkpoint_s=checkpoint,
        startup_s=plan.startup_s,
        energy_kwh=None if power_w is None else seconds.times(gpus * power_w / 3.6e6),
        offer=offer,
        machines=None if offer is None else offer.machines_for(gpus),
        usd=None if offer is None else seconds.times(offer.usd_per_hour_of(gpus) / 3600),
        uneven_s=more,
    )


def mean_beyond(step: Prediction, others: Iterable[tuple[Prediction, float]]) -> Ranged:
    """How much longer the mean of all steps is than one of them, which may be below zero.

    Args:
        step: the step that most of them are like.
        others: the steps that are not, and the share of each.
    """
    beyond = _NONE
    for other, share in others:
        difference = _step(other, 1).plus(_step(step, 1).times(-1))
        beyond = beyond.plus(difference.times(share))
    return beyond


def accumulating(strategy: Parallel, plan: TrainingPlan | None, samples: int | None) -> Parallel:
    """The strategy with as many micro-batches as the plan's global batch asks for.

    Raises:
        InvalidInput: the global batch is no multiple of what all replicas take at once.
    """
    batch = None if plan is None else plan.global_batch
    if batch is None or samples is None or strategy.microbatches > 1:
        return strategy
    count, rest = divmod(batch, samples * strategy.data)
    if rest or not count:
        raise InvalidInput(
            f"a global batch of {batch} cannot be divided among {strategy.data} replicas with "
            f"micro-batches of {samples}; use a multiple of {samples * strategy.data}, or another "
            "--batch"
        )
    return replace(strategy, microbatches=count)


def _accumulated(prediction: Prediction, plan: TrainingPlan) -> int:
    """How many predicted steps make one optimizer step with the plan's global batch."""
    if plan.global_batch is None:
        return 1
    samples = prediction.samples
    if samples is None:
        raise InvalidInput(
            "a global batch needs a step that says how many samples it takes; give --batch, or "
            "trace it with samples="
        )
    count, rest = divmod(plan.global_batch, samples)
    if rest or not count:
        raise InvalidInput(
            f"a global batch of {plan.global_batch} is no multiple of the {samples} "
            f"{prediction.trace.unit} of a step; use another batch"
        )
    if count > 1 and prediction.parallel is not None:
        micro = prediction.microbatches * count
        raise InvalidInput(
            f"{prediction.gpus} GPUs take {samples} {prediction.trace.unit} in a step, not "
            f"{plan.global_batch}; accumulate gradients with microbatches={micro}"
        )
    return count


def _step(prediction: Prediction, accumulated: int) -> Ranged:
    """The time of an optimizer step; the optimizer itself runs only once in it."""
    step = Ranged(prediction.seconds, prediction.low_s, prediction.high_s)
    if accumulated == 1:
        return step
    optimizer = _share(prediction, Phase.OPTIMIZER)
    return step.times(accumulated - (accumulated - 1) * optimizer)


def _share(prediction: Prediction, phase: Phase) -> float:
    """The share of a phase in the GPU's time. It stands for the phase's share of the step."""
    return prediction.by_phase()[phase] / prediction.gpu_s if prediction.gpu_s else 0.0


def _validation(prediction: Prediction, plan: TrainingPlan) -> Ranged:
    """The time of one validation."""
    stated = exactly(plan.validation_s)
    if not plan.validation_samples:
        return stated
    samples = prediction.samples
    if samples is None:
        raise InvalidInput("validation samples need a step that says how many samples it takes")
    step = Ranged(prediction.seconds, prediction.low_s, prediction.high_s)
    if prediction.parallel is not None:
        forward = sum(stage.forward_s for stage in prediction.stages)
        forward *= prediction.microbatches
        share = min(forward / prediction.seconds, 1.0)
    else:
        share = _share(prediction, Phase.FORWARD)
    return stated.plus(step.times(share * plan.validation_samples / samples))


def _steps(plan: TrainingPlan, samples: float | None, unit: str) -> int:
    """The number of optimizer steps."""
    if plan.iterations is not None:
        return math.ceil(plan.iterations)
    if samples is None:
        raise InvalidInput(
            "how many samples a step takes is not known, so only iterations say how long the "
            "training is; give --batch, or --iterations"
        )
    return max(1, math.ceil(_all_samples(plan, unit) / samples - 1e-9))


def _all_samples(plan: TrainingPlan, unit: str) -> float:
    if plan.samples is not None:
        return plan.samples
    if plan.epochs is not None:
        assert plan.dataset_samples is not None
        return plan.epochs * plan.dataset_samples
    assert plan.tokens is not None
    if unit == TOKENS:
        return plan.tokens
    if plan.sample_tokens is None:
        raise InvalidInput(
            f"the step counts {unit}; say how many tokens each has with --sample-tokens, or give "
            "--samples"
        )
    return plan.tokens / plan.sample_tokens


def _times(
    steps: int, every: float | None, plan: TrainingPlan, samples: float | None, what: str
) -> int:
    """How many validations or checkpoints there are: one every so many steps, else one an epoch."""
    if every is not None:
        return int(steps // every)
    if plan.epochs is not None:
        return math.ceil(plan.epochs)
    if plan.dataset_samples is not None and samples is not None:
        return max(1, int(steps * samples // plan.dataset_samples))
    raise InvalidInput(
        f"say how often a {what} comes: --{what}-every N steps, or --dataset-samples for once in "
        "an epoch"
    )


# Failures and restarts of long trainings on many GPUs.
#
# A failure of any GPU stops the training. What was done since the last checkpoint is lost, and the
# restart takes time. The interval between checkpoints that loses least is that of Young ("A first
# order approximation to the optimum checkpoint interval", CACM 1974) and Daly (2006): sqrt(2 x
# checkpoint time x time between failures).


LLAMA_3_GPU_HOURS = 54 * 24 * 16384 / 419
"""The GPU hours between failures of Llama 3's training: 419 unexpected interruptions in 54 days on
16,384 H100s (Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.4)."""
RESTART_S = 600.0
"""The time from a failure to the first new step, if none is given. An assumption."""
CHECKPOINT_S = 60.0
"""The time for which one checkpoint stops a training, if none is given. An assumption."""


@dataclass(frozen=True)
class Interruptions:
    """What failures and checkpoints cost a training."""

    failures: float
    """How many are expected."""
    hours_between: float
    """The mean time between two of them."""
    checkpoint_every_s: float
    """The time between checkpoints."""
    share: float
    """What checkpoints, lost work and restarts add to the time of the training."""


def interruptions(
    training_s: float,
    gpus: int,
    gpu_hours_between: float = LLAMA_3_GPU_HOURS,
    checkpoint_s: float = CHECKPOINT_S,
    restart_s: float = RESTART_S,
    every_s: float | None = None,
) -> Interruptions:
    """The failures that are expected in a training, and the time that they cost.

    Args:
        training_s: the time of the training without them.
        gpus: how many GPUs it has.
        gpu_hours_between: the GPU hours between two failures.
        checkpoint_s: how long one checkpoint stops the training.
        restart_s: the time from a failure to the first new step.
        every_s: the time between checkpoints. None for the best.

    Raises:
        InvalidInput: a time is not above 0, or failures come faster than restarts.
    """
    given = (training_s, gpu_hours_between, checkpoint_s, restart_s, every_s or 1.0)
    if min(given) <= 0 or not math.isfinite(sum(given)):
        raise InvalidInput("times between failures, of checkpoints and of restarts are above 0")
    mean_s = gpu_hours_between * 3600 / gpus
    every_s = every_s or math.sqrt(2 * checkpoint_s * mean_s)
    lost = (every_s / 2 + restart_s) / mean_s
    if lost >= 1:
        raise InvalidInput(
            f"{gpus} GPUs fail every {mean_s:.0f} s, and each failure loses as much; use fewer "
            "GPUs, or checkpoints more often"
        )
    share = (1 + checkpoint_s / every_s) / (1 - lost) - 1
    failures = training_s * (1 + share) / mean_s
    return Interruptions(failures, mean_s / 3600, every_s, share)


# Hardware that you buy: its price as a price of an hour, to be compared with rented GPUs.


BOUGHT = "bought"
"""The provider of an offer that stands for bought hardware."""
HOURS_PER_YEAR = 365.25 * 24


@dataclass(frozen=True, slots=True)
class Purchase:
    """A GPU that is bought, with its share of the machine around it.

    >>> Purchase(usd=2000, years=4, utilisation=0.5).usd_per_used_hour(power_w=450)
    0.11407711613050422
    """

    usd: float
    """What one GPU and its share of the machine cost."""
    years: float = 4.0
    """How long it is used before it is worth nothing."""
    utilisation: float = 0.5
    """The share of that time in which it trains. Idle hours cost money, too."""
    usd_per_kwh: float = 0.0
    """The price of power. At most the board's power is drawn while it trains."""

    def __post_init__(self) -> None:
        if not 0 < self.usd < 1e9:
            raise InvalidInput(f"the price of a GPU is {self.usd!r}; it is a number above 0")
        if not 0 < self.years <= 100:
            raise InvalidInput(f"a GPU is used for {self.years!r} years; it is a number above 0")
        if not 0 < self.utilisation <= 1:
            raise InvalidInput(f"the utilisation is {self.utilisation!r}; it is above 0, at most 1")
        if not 0 <= self.usd_per_kwh < 1e3:
            raise InvalidInput(f"the price of power is {self.usd_per_kwh!r}; it is 0 or more")

    def usd_per_used_hour(self, power_w: float) -> float:
        """What an hour of training costs, in USD."""
        hours = self.years * HOURS_PER_YEAR * self.utilisation
        return self.usd / hours + power_w / 1000 * self.usd_per_kwh

    def offer(self, device: Device, date: datetime.date) -> Price:
        """The purchase as an offer of one GPU.

        Raises:
            InvalidInput: power has a price, and the board's power is not known.
        """
        if device.tdp_w is None and self.usd_per_kwh:
            raise InvalidInput(
                f"the board power of {device.id} is not known, so the price of power cannot be "
                "counted; leave it out"
            )
        return Price(
            device_id=device.id,
            usd_per_hour=self.usd_per_used_hour(device.tdp_w or 0.0),
            provider=BOUGHT,
            instance="",
            date=date,
        )
