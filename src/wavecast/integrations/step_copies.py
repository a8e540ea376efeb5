"""A training's own step, copied so that it can be traced without touching the training.

The copy has no weights: its parameters and buffers are new tensors of the same shape, which take
no memory in the trace. The model, its optimizer, its data and the random numbers of the
training stay as they are.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from wavecast.errors import CaptureError

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
