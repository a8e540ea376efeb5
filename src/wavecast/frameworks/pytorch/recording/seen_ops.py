"""The distinct tensors and ops of a recording, each kept once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wavecast.traces.step import Op, Scalar, TensorSpec


class SeenOps:
    """Specs of tensors and ops: equal ones are one object."""

    def __init__(self) -> None:
        self._specs: dict[tuple[Any, ...], TensorSpec] = {}
        self._ops: dict[Op, Op] = {}

    def spec(self, tensor: Any) -> TensorSpec:
        """The spec of a tensor."""
        shape = tuple(tensor.shape)
        strides = None if tensor.is_contiguous() else tensor.stride()
        key = (shape, tensor.dtype, strides, tensor.device.type)
        spec = self._specs.get(key)
        if spec is None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            spec = TensorSpec(shape, dtype, strides and tuple(strides), tensor.device.type)
            self._specs[key] = spec
        return spec

    def op(
        self,
        name: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attrs: Sequence[tuple[str, Scalar]],
    ) -> Op:
        """The op on these tensors."""
        read, written = (tuple(self.spec(t) for t in tensors) for tensors in (inputs, outputs))
        return self.known(Op(name, read, written, tuple(attrs)))

    def known(self, op: Op) -> Op:
        """The op that is equal to this one, and was seen first."""
        return self._ops.setdefault(op, op)

    def on_gpu(self, op: Op) -> Op:
        """The op with all its tensors on the GPU."""
        return self.known(
            replace(
                op,
                inputs=tuple(replace(t, device="cuda") for t in op.inputs),
                outputs=tuple(replace(t, device="cuda") for t in op.outputs),
            )
        )
