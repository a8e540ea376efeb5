"""Steps that call torch.compile, traced as eager code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch._dynamo import eval_frame

from wavecast.frameworks.pytorch.capture.assumptions import Assumptions


class CompilesCode(BaseException):
    """Raised where a step calls torch.compile, to begin again with a compiler.

    It is no error of the step, so the step's own handlers should not catch it.
    """


def compile_nothing(
    replace: Callable[..., None], stack: ExitStack, assumptions: Assumptions
) -> None:
    """Let compiled code run as it was written, and note that the step has some.

    Args:
        replace: replaces attributes until the stack is closed.
        stack: is closed at the end of the trace.
        assumptions: keeps the notes, and says whether to stop instead.
    """
    replace(torch, compile=_eager(assumptions))
    stack.enter_context(torch.compiler.set_stance("force_eager"))
    if hasattr(eval_frame, "_callback_from_stance"):
        noticing = _noticing(eval_frame._callback_from_stance, assumptions)
        replace(eval_frame, _callback_from_stance=noticing)


def _eager(assumptions: Assumptions) -> Any:
    def compiled(model: Any = None, **options: Any) -> Any:
        if torch.compile is not compiled:  # a module that was imported meanwhile has kept this one
            return torch.compile(model, **options)
        _notice(assumptions)
        return model if model is not None else (lambda function: function)

    return compiled


def _noticing(callback_from_stance: Any, assumptions: Assumptions) -> Any:
    """Torch's callback for compiled code, wrapped to note that the step uses torch.compile."""

    def callback(compiler: Any) -> Any:
        # None and False mean that torch itself wants code that is not compiled.
        if callable(compiler):
            _notice(assumptions)
        return callback_from_stance(compiler)

    return callback


def _notice(assumptions: Assumptions) -> None:
    assumptions.compiled = True
    if assumptions.stops_at_compile:
        raise CompilesCode
