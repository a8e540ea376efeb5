"""The watch over a training: it predicts the step, and compares it with the steps as they run.

A watch never stops a training. It logs what it cannot predict or compare.
"""

from __future__ import annotations

import copy
import logging
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import wavecast
from wavecast.errors import CaptureError, WavecastError
from wavecast.runs.readers import make_given
from wavecast.runs.readers.text import Doubts, warn
from wavecast.runs.readers.timing import Facts, LogSpan, Mark, runs_of, trainings
from wavecast.runs.run import Run

_LOG = logging.getLogger("wavecast.training")
_MANY = 3
"""The least number of timed steps that are compared."""


def tell(message: str, level: int = logging.INFO) -> None:
    """Log a message. It goes to the standard error if nobody has set up logging."""
    if not _LOG.handlers and not logging.getLogger().handlers:
        _LOG.addHandler(logging.StreamHandler())
        _LOG.setLevel(logging.INFO)
    _LOG.log(level, message)


class TrainingWatch:
    """Predicts the step of a training, and compares it with the steps as they run.

    Args:
        gpu: the GPU to predict for. None for the one that the training runs on.
        running_on: the GPU that the training runs on. None to ask torch.
        warm_up: the first steps, which are not timed.
        every: after how many steps times are compared again.
        host: the host that issues the step, as for `wavecast.predict`.
        clock: a clock in seconds that never goes back.
        told: called with each message and its level of logging.
    """

    def __init__(
        self,
        gpu: str | None = None,
        *,
        running_on: str | None = None,
        warm_up: int = 10,
        every: int = 50,
        host: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
        told: Callable[[str, int], None] = tell,
    ) -> None:
        self.gpu = None if gpu is None else wavecast.device(gpu).id
        self.running_on = None if running_on is None else wavecast.device(running_on).id
        self._warm_up, self._every, self._host = warm_up, max(1, every), host
        self._clock, self._told = clock, told
        self.prediction: wavecast.Prediction | None = None
        """The prediction of the step. None before the first step, and if there is none."""
        self.problem = ""
        """Why there is no prediction, or why it is not compared."""
        self.begin()

    def begin(self) -> None:
        """Start a new training."""
        self.prediction, self.problem = None, ""
        self._done = self._timed = self._told_at = 0
        self._timed_s = 0.0
        self._last_s: float | None = None
        self._warned = self._asked = False

    @property
    def is_due(self) -> bool:
        """Whether the step was not predicted yet."""
        return not self._asked

    def predict(
        self,
        make_step: Callable[[], Callable[[], Any]],
        device: Any,
        samples: int | None = None,
    ) -> None:
        """Predict the step of the training, once.

        Args:
            make_step: the step on a copy of the model, from `step_copies.step_of`.
            device: the torch device of the training.
            samples: how many samples a step takes.
        """
        self._asked = True
        try:
            self.running_on = self.running_on or _gpu_of(device)
            target = self.gpu or self.running_on
            if target is None:
                raise wavecast.InvalidInput(
                    f'the training runs on {device}; name a GPU to predict for, such as gpu="l4"'
                )
            with undisturbed():
                trace = wavecast.trace(make_step, gpu=target, samples=samples)
                self.prediction = wavecast.predict(trace, target, host=self._host)
                self._told(_announced(self.prediction), logging.INFO)
        except WavecastError as error:
            self.prediction, self.problem = None, str(error)
            self._told(f"the step was not predicted: {error}", logging.WARNING)
            return
        if self.running_on != target:
            where = self.running_on or str(device)
            self.problem = f"the training runs on {where}, so its times are not compared"
            self._told(self.problem, logging.INFO)

    def step(self) -> bool:
        """Note that a step has ended; returns whether the times were compared."""
        now_s = self._clock()
        self._done += 1
        if self._last_s is not None and self._done > self._warm_up + 1:
            self._timed += 1
            self._timed_s += now_s - self._last_s
        self._last_s = now_s
        if self._timed < _MANY or self._timed < self._told_at + self._every:
            return False
        self._told_at = self._timed
        self._compare()
        return True

    def interrupt(self) -> None:
        """Note that something else takes time now: an evaluation, a checkpoint."""
        self._last_s = None

    def end(self) -> None:
        """Compare for the last time, if steps were timed since."""
        if self._timed >= _MANY and self._timed > self._told_at:
            self._told_at = self._timed
            self._compare()

    @property
    def measured_s(self) -> float | None:
        """The mean time of a step after the warm-up; None while too few were timed."""
        return self._timed_s / self._timed if self._timed >= _MANY else None

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers for the logs of the training: predicted and measured seconds."""
        values: dict[str, float] = {}
        if self.prediction is not None:
            values["wavecast/predicted_s"] = self.prediction.seconds
        if self.measured_s is not None:
            values["wavecast/measured_s"] = self.measured_s
            if self.prediction is not None and not self.problem:
                values["wavecast/measured_over_predicted"] = (
                    self.measured_s / self.prediction.seconds
                )
        return values

    def _compare(self) -> None:
        step, measured_s = self.prediction, self.measured_s
        if step is None or measured_s is None or self.problem:
            return
        text = f"predicted {_ms(step.seconds)}, measured {_ms(measured_s)} a step on {self.gpu_id}"
        if step.low_s is None or step.high_s is None or step.low_s <= measured_s <= step.high_s:
            self._told(text, logging.INFO)
        elif not self._warned:
            self._warned = True
            side = "above" if measured_s > step.high_s else "below"
            why = _REASONS[side]
            bounds = f"{_ms(step.low_s)} to {_ms(step.high_s)}"
            self._told(f"{text}, {side} the range of {bounds}: {why}", logging.WARNING)

    @property
    def gpu_id(self) -> str:
        """The GPU that the prediction is for; empty without one."""
        return "" if self.prediction is None else self.prediction.device.id


_REASONS = {
    "above": "data loading, work of the host or another process may take the rest",
    "below": "the step may be compiled, or do less than in the first batch",
}


def _announced(step: wavecast.Prediction) -> str:
    """The prediction in one line."""
    parts = [f"predicted {_ms(step.seconds)} a step on {step.device.id}"]
    if step.low_s is not None and step.high_s is not None:
        parts.append(f"range {_ms(step.low_s)} to {_ms(step.high_s)}")
    if step.memory is not None:
        verb = "does not fit" if step.fits is False else "fits"
        parts.append(f"{verb}: {step.memory.needed_bytes / (1 << 30):.1f} GiB needed")
    return ", ".join(parts)


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f} ms" if milliseconds >= 99.5 else f"{milliseconds:.3g} ms"


def _gpu_of(device: Any) -> str | None:
    """The id of the GPU of a training; None on another device, or on a GPU that is not known."""
    import torch

    if getattr(device, "type", "") != "cuda":
        return None
    try:
        return wavecast.device(torch.cuda.get_device_name(device)).id
    except wavecast.UnknownName:
        return None


# The recorder of a running training, which all callbacks for training loops share.
#
# Steps are timed on the host when they end. The GPU may be a few steps behind, but by the same
# amount at both ends of the stable phase. A recorder never stops a training: if it cannot record
# something, it warns.


MOST_MARKS = 100_000
"""The most step times to keep, however long the training is."""


class TrainingRecorder:
    """Collects the times of a training's steps, and stores the training as a run.

    Args:
        store: the run store, as for `wavecast.RunStore`. It is opened at once, so that a wrong one
            is noticed before the training and not after it.
        source: the source that is stored with the runs.
        clock: a clock in seconds that never goes back.
        given: facts that the training does not have or has wrong, as for `wavecast.read_runs`.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None,
        source: str,
        clock: Callable[[], float] = time.perf_counter,
        **given: Any,
    ) -> None:
        self._place, self._source, self._clock = store, source, clock
        self._given = make_given(given)
        self._marks: list[Mark] = []
        self._broken = False
        self._every = 1
        self._begin_s = clock()
        self.runs: tuple[Run, ...] = ()
        """The runs that were stored last."""
        import wavecast

        with wavecast.RunStore(store) as opened, opened.writing():
            pass  # a store that cannot be written is refused before hours of training

    def begin(self) -> None:
        """Start a new training."""
        self._marks, self._broken, self._every, self.runs = [], False, 1, ()
        self._begin_s = self._clock()

    def step(self, number: int) -> None:
        """Record that a step has ended now."""
        if number % self._every:
            return
        self._marks.append(Mark(number, self._clock(), f"step {number}", self._broken))
        self._broken = False
        if len(self._marks) >= MOST_MARKS:  # in a long training, every second step is enough
            self._every *= 2
            self._marks = _every_second(self._marks)

    def interrupt(self) -> None:
        """Record that something other than steps takes time now: an evaluation, a checkpoint."""
        self._broken = True

    def end(self, facts: Facts) -> tuple[Run, ...]:
        """Store the training that has ended, and return its runs."""
        import wavecast

        doubts = Doubts(Path(self._source), warn)
        try:
            timed = trainings(self._marks, doubts)
            span = LogSpan(self._begin_s, self._clock())
            self.runs = tuple(runs_of(timed, facts, self._given, doubts, span))
            with wavecast.RunStore(self._place) as store:
                store.add(self.runs)
        except WavecastError as error:
            warn(f"the training was not stored: {error}")
        doubts.close()
        return self.runs


def _every_second(marks: list[Mark]) -> list[Mark]:
    """Every second mark. It counts as after a break if it or the one before it does."""
    pairs = zip(marks[::2], marks[1::2], strict=False)
    return [replace(b, after_break=a.after_break or b.after_break) for a, b in pairs]


def gpu_name(device: Any) -> str:
    """The name of a torch device; "cpu" for the CPU."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else str(device.type)


def precision_of(model: Any) -> str | None:
    """The precision of a model that trains without autocast, from its weights. None if mixed."""
    import torch

    kinds = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
    if kinds != {"float32"}:
        return {"bfloat16": "bf16", "float16": "fp16"}.get(kinds.pop()) if len(kinds) == 1 else None
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32"


# A training's own step, copied so that it can be traced without touching the training.
#
# The copy has no weights: its parameters and buffers are new tensors of the same shape, which take
# no memory in the trace. The model, its optimizer, its data and the random numbers of the training
# stay as they are.


_PATCHED = ("forward", "_original_forward")
"""Attributes that accelerate overwrites: a forward pass that is bound to the original model."""


@dataclass(frozen=True)
class StepRecipe:
    """How a trainer updates the weights once, apart from the model and the loss."""

    accumulate: int = 1
    """How many batches there are in a step."""
    autocast: str | None = None
    """The data type of autocast, "bf16" or "fp16". None without autocast."""
    clip_norm: float | None = None
    clip_value: float | None = None
    pinned: bool = True
    """Whether batches come from pinned memory, so that the host need not wait for their copy."""


def step_of(
    model: Any,
    optimizer: Any,
    batch: Any,
    loss_of: Callable[[Any, Any], Any],
    recipe: StepRecipe,
    keep: Mapping[int, Any] | None = None,
) -> Callable[[], Callable[[], None]]:
    """A `make_step` for `wavecast.trace`: the step of a training, on a copy.

    Args:
        model: the model that trains. It is not changed.
        optimizer: its optimizer. It is not changed.
        batch: a batch on the host, from `on_host`.
        loss_of: the loss of a model (the copy) for a batch on the GPU.
        recipe: what else belongs to a step.
        keep: objects that the copy shares with the model, by their id.
    """

    def make_step() -> Callable[[], None]:
        copied = _copied_model(model, dict(keep or {}))
        chosen = _copied_optimizer(optimizer, model, copied)
        trained = [p for p in copied.parameters() if p.requires_grad]
        scaler = torch.amp.GradScaler("cuda") if recipe.autocast == "fp16" else None
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.autocast or "")

        def step() -> None:
            for _ in range(recipe.accumulate):
                data = _on_gpu(batch, recipe.pinned)
                with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
                    loss = loss_of(copied, data)
                loss = loss / recipe.accumulate if recipe.accumulate > 1 else loss
                (loss if scaler is None else scaler.scale(loss)).backward()
            _update(chosen, trained, scaler, recipe)

        return step

    return make_step


def _update(optimizer: Any, trained: list[Any], scaler: Any, recipe: StepRecipe) -> None:
    """Clip the gradients, update the weights, and forget the gradients."""
    if scaler is not None and (recipe.clip_norm or recipe.clip_value):
        scaler.unscale_(optimizer)
    if recipe.clip_norm:
        torch.nn.utils.clip_grad_norm_(trained, recipe.clip_norm)
    if recipe.clip_value:
        torch.nn.utils.clip_grad_value_(trained, recipe.clip_value)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()


def _copied_model(model: Any, memo: dict[int, Any]) -> Any:
    """A copy of a model on the GPU, whose tensors have shapes but no values."""
    for tensor in (*model.parameters(), *model.buffers()):
        memo[id(tensor)] = _like(tensor)
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        if "_original_forward" in vars(module):
            for name in _PATCHED:
                vars(module).pop(name, None)
    return copied.cuda()


def _like(tensor: Any) -> Any:
    """A new tensor on the host with the shape, type and layout of another."""
    empty = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _copied_optimizer(optimizer: Any, model: Any, copied: Any) -> Any:
    """An optimizer of the same kind and settings, without state, for the copy's parameters."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate and Lightning wrap them
    pairs = zip(model.parameters(), copied.parameters(), strict=True)
    replaced = {id(old): new for old, new in pairs}
    fresh = object.__new__(type(optimizer))
    # A learning-rate scheduler replaces `step` by a method of the original optimizer.
    fresh.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    fresh.state = defaultdict(dict)
    fresh.param_groups = []
    for group in optimizer.param_groups:
        if any(id(parameter) not in replaced for parameter in group["params"]):
            raise CaptureError("the optimizer has parameters that the model does not have")
        parameters = [replaced[id(parameter)] for parameter in group["params"]]
        settings = {k: _setting(v) for k, v in group.items() if k != "params"}
        fresh.param_groups.append({**settings, "params": parameters})
    return fresh


def _setting(value: Any) -> Any:
    """A setting of an optimizer; a learning rate in a tensor becomes a number."""
    is_number = isinstance(value, torch.Tensor) and value.numel() == 1
    return float(value) if is_number else value


def on_host(batch: Any) -> Any:
    """A batch with all tensors on the host, in plain containers."""
    return _mapped(batch, lambda tensor: tensor.detach().cpu())


def _on_gpu(batch: Any, pinned: bool) -> Any:
    def moved(tensor: Any) -> Any:
        source = tensor.pin_memory() if pinned else tensor
        return source.to("cuda", non_blocking=pinned)

    return _mapped(batch, moved)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A batch in which each tensor is changed: dictionaries, lists, tuples, named tuples."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(inner, change) for inner in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(inner, change) for inner in value)
    return value


@contextmanager
def undisturbed() -> Iterator[None]:
    """A block that leaves the random number generators of the process as they were."""
    numpy = sys.modules.get("numpy")
    drawn = random.getstate(), torch.get_rng_state()
    of_numpy = numpy.random.get_state() if numpy is not None else None
    with _outside_autocast(), torch.enable_grad():
        try:
            yield
        finally:
            random.setstate(drawn[0])
            torch.set_rng_state(drawn[1])
            if numpy is not None:
                numpy.random.set_state(of_numpy)


@contextmanager
def _outside_autocast() -> Iterator[None]:
    """A block outside of autocast, although the training may be within its own.

    Torch keeps weights in half precision until the outermost autocast ends. A step that is traced
    within another would find those of the step before.
    """
    kinds = {kind: torch.is_autocast_enabled(kind) for kind in ("cuda", "cpu")}
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    for kind in kinds:
        torch.set_autocast_enabled(kind, False)
    for _ in range(depth):
        torch.autocast_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(depth):
            torch.autocast_increment_nesting()
        for kind, enabled in kinds.items():
            torch.set_autocast_enabled(kind, enabled)
