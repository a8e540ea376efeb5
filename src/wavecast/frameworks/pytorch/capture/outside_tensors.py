"""Fake tensors in place of plain ones, when they are moved to the GPU.

A model or an optimizer that was built outside `make_step` holds plain tensors. When it is moved to
the GPU, they are replaced by fake ones; a tensor used in several places gets the same fake
everywhere. When tracing ends, the plain ones are put back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture.values.host_values import (
    LARGEST_CONSTANT,
    HostValues,
    known_values,
)
from wavecast.frameworks.pytorch.capture.values.places import ON_HOST, put
from wavecast.frameworks.pytorch.capture.values.sparse_tensors import SparseMatrix
from wavecast.frameworks.pytorch.recording.structure import local_part
from wavecast.frameworks.pytorch.recording.user_lines import user_line


class OutsideTensors:
    """The fake tensors of one trace that replace real ones, and how to put those back."""

    def __init__(self, host: HostValues) -> None:
        self._host = host
        # The real tensor is kept, too, because its id is unique only while it lives.
        self._fakes: dict[int, tuple[Any, Any]] = {}
        self._undo: list[Callable[[], None]] = []

    def tensor(self, real: Any) -> Any:
        """The fake tensor that replaces a plain one. A fake tensor is returned as it is."""
        if isinstance(real, FakeTensor):
            return real
        if id(real) not in self._fakes:
            self._fakes[id(real)] = (real, self.fake_for(real))
        return self._fakes[id(real)][1]

    def copy_of(self, real: Any) -> Any:
        """A fake tensor with the present values of a plain one.

        A tensor with a gradient is replaced, because its gradient must arrive at one object.
        """
        return self.tensor(real) if real.requires_grad else self.fake_for(real)

    def fake_for(self, real: Any) -> Any:
        """A new fake tensor on the host. It keeps whole numbers and truth values, if it is small.

        Parameters and real numbers need no values on the GPU, because code seldom branches on them.
        """
        if isinstance(real, FakeTensor):
            return real
        values = None
        if not isinstance(real, torch.nn.Parameter) and 0 < real.numel() <= LARGEST_CONSTANT:
            values = known_values(real)
        if values is None:
            fake = self._host.fake(real, keep=False)
        else:
            with no_dispatch():
                # A copy, so that the step does not write to the user's tensor.
                values = values.detach().clone()
            fake = self._host.fake(values, keep=True)
        put(fake, ON_HOST)
        return fake

    def module(self, module: Any) -> None:
        """Replace a module's own parameters and buffers."""
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if isinstance(tensor, SparseMatrix):
                    continue  # made of fake tensors when it is moved
                if tensor is not None and not isinstance(local_part(tensor), FakeTensor):
                    self._put(tensors, name, self.tensor(tensor))

    def optimizer(self, optimizer: Any) -> None:
        """Replace the parameters of an optimizer, and move its state to the fake ones."""
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                if isinstance(local_part(parameter), FakeTensor):
                    continue
                if id(parameter) not in self._fakes:
                    raise CaptureError(
                        f"the optimizer used at {user_line()} holds parameters of a model that was "
                        "never moved to the GPU; build both inside make_step"
                    )
                self._put(group["params"], index, self.tensor(parameter))
                if parameter in optimizer.state:
                    self._move_state(optimizer.state, parameter)

    def undo(self) -> None:
        """Put the real tensors back."""
        while self._undo:
            self._undo.pop()()

    def _put(self, container: Any, key: Any, value: Any) -> None:
        self._undo.append(partial(container.__setitem__, key, container[key]))
        container[key] = value

    def _move_state(self, state: Any, parameter: Any) -> None:
        """Give the fake parameter the optimizer state of the real one. Scalars stay as they are."""
        fake = self.tensor(parameter)
        state[fake] = {
            name: self.tensor(value).cuda()
            if isinstance(value, torch.Tensor) and value.dim()
            else value
            for name, value in state[parameter].items()
        }
        self._undo.append(lambda: state.pop(fake, None))
