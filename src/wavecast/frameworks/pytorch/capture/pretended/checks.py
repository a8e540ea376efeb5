"""Checks of a traced step: it trains, its calls agree, and its tensors have elements.

A step that does nothing useful can be traced without an error, and its prediction looks like any
other. What can only be a mistake is an error; what may be intended is a note in the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.user_lines import user_line

_NEED_ELEMENTS = frozenset(
    """
    mm addmm bmm baddbmm addbmm mv addmv _grouped_mm _scaled_mm convolution convolution_backward
    embedding embedding_dense_backward _embedding_bag _cudnn_rnn _cudnn_rnn_backward
    """.split()
)
"""Ops, besides attention, that do the work of a step. Without elements they do none."""

_TOLERANCE = 0.05
_FEW_OPS = 4
"""Two calls agree if they differ by these at most: the first call may create what is kept."""


@dataclass
class StepWatch:
    """What one call of a step does."""

    forward: int = 0
    backward: int = 0
    """How many ops ran on the GPU, without those of optimizers."""
    elements: int = 0
    """How many elements their results have."""
    working: int = 0
    """How many ops need tensors with elements,"""
    empty: int = 0
    """and how many of them got a tensor without any."""
    empty_line: str = ""
    trains: bool = False
    """Whether a model ran in training mode, with parameters to train and gradients enabled."""
    optimizer_line: str = ""
    """The line that stepped an optimizer, if any."""
    has_gradients: bool = False
    """Whether an optimizer had a gradient when it stepped."""
    _optimizing: int = field(default=0, repr=False)

    @contextmanager
    def watch(self, recorder: OpRecorder) -> Iterator[None]:
        """Follow the call of the step inside the block."""
        self._follows = recorder.structure.follows
        with ExitStack() as stack:
            for handle in (
                module_hooks.register_module_forward_pre_hook(self._enter_module),
                optimizer_hooks.register_optimizer_step_pre_hook(self._enter_optimizer),
                optimizer_hooks.register_optimizer_step_post_hook(self._leave_optimizer),
            ):
                stack.callback(handle.remove)
            recorder.on_op = self._count
            stack.callback(setattr, recorder, "on_op", None)
            yield

    def restart(self) -> StepWatch:
        """What was done so far. From here on, a new step is counted."""
        done = copy(self)
        for name, value in vars(StepWatch(_optimizing=self._optimizing)).items():
            setattr(self, name, value)
        return done

    def add(self, other: StepWatch) -> None:
        """Count what another part of the same step did."""
        self.forward += other.forward
        self.backward += other.backward
        self.elements += other.elements
        self.working += other.working
        self.empty += other.empty
        self.empty_line = self.empty_line or other.empty_line
        self.trains = self.trains or other.trains
        self.optimizer_line = self.optimizer_line or other.optimizer_line
        self.has_gradients = self.has_gradients or other.has_gradients

    def _count(self, func: Any, args: tuple[Any, ...], returned: list[Any]) -> None:
        if not any(tensor.is_cuda for tensor in returned):
            return
        node = torch._C._current_autograd_node()
        if self._optimizing and node is None:
            return
        if node is None:
            self.forward += 1
        elif node.name() == "torch::autograd::AccumulateGrad":
            return  # it adds gradients, but not the first ones
        else:
            self.backward += 1
        self.elements += sum(tensor.numel() for tensor in returned)
        if func is not None and _needs_elements(func):
            self.working += 1
            if any(isinstance(a, torch.Tensor) and a.numel() == 0 for a in args[:3]):
                self.empty += 1
                self.empty_line = self.empty_line or user_line()

    def _enter_module(self, module: Any, _args: Any) -> None:
        if not self.trains and module.training and torch.is_grad_enabled() and self._follows():
            self.trains = any(p.requires_grad for p in module.parameters(recurse=False))

    def _enter_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._follows():
            self._optimizing += 1
            self.optimizer_line = self.optimizer_line or user_line()
            self._notice_gradients(optimizer)

    def _leave_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._follows():
            self._optimizing -= 1
            self._notice_gradients(optimizer)  # a closure may have made them

    def _notice_gradients(self, optimizer: Any) -> None:
        self.has_gradients = self.has_gradients or any(
            parameter.grad is not None or getattr(parameter, "main_grad", None) is not None
            for group in optimizer.param_groups
            for parameter in group["params"]
        )


@cache
def _needs_elements(func: Any) -> bool:
    name = str(func._schema.name).rpartition("::")[2]
    return name in _NEED_ELEMENTS or "attention" in name


def check(recorded: StepWatch, before: StepWatch | None) -> list[str]:
    """The notes about a step. What can only be a mistake is an error.

    Args:
        recorded: the call that was recorded.
        before: the call before it. None if there was none.
    """
    notes = [_empty(recorded), _training(recorded)]
    if before is not None:
        notes.append(_difference(before, recorded))
    return [note for note in notes if note]


def _empty(step: StepWatch) -> str:
    if not step.empty:
        return ""
    share = f"{step.empty} of {step.working} matmuls, convolutions, lookups and attention ops"
    if 2 * step.empty > step.working:
        raise CaptureError(
            f"{share} of the step get tensors without elements, the first at {step.empty_line}; "
            "check the sizes of the batch"
        )
    return f"{share} get tensors without elements, the first at {step.empty_line}"


def _training(step: StepWatch) -> str:
    if step.optimizer_line and not step.has_gradients:
        raise CaptureError(
            f"the optimizer that steps at {step.optimizer_line} has no gradient for any of its "
            "parameters; call backward() before, on a loss that depends on them"
        )
    if step.backward:
        return ""
    if step.optimizer_line:
        return (
            f"an optimizer steps at {step.optimizer_line}, but the recorded call of the step has "
            "no backward pass"
        )
    if step.trains:
        return (
            "the step runs a model in training mode but has no backward pass; call model.eval() or "
            "use torch.no_grad() if it is meant to be inference"
        )
    return ""


def _difference(first: StepWatch, second: StepWatch) -> str:
    if _differ(first.forward, second.forward) or _differ(first.backward, second.backward):
        return (
            f"the recorded call of the step ran {second.forward} forward and {second.backward} "
            f"backward ops, but the call before ran {first.forward} and {first.backward}; only the "
            "recorded one is predicted"
        )
    if abs(first.elements - second.elements) > _TOLERANCE * max(first.elements, second.elements):
        return (
            f"the results of the recorded call of the step have {second.elements:,} elements, but "
            f"those of the call before have {first.elements:,}; only the recorded one is predicted"
        )
    return ""


def _differ(first: int, second: int) -> bool:
    return abs(first - second) > max(_FEW_OPS, _TOLERANCE * max(first, second))
