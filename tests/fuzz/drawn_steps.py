"""Valid training steps with values that hypothesis draws, and the same with single fields bent.

A step is a chain of layers: forward pass, backward pass and optimizer, in which every call names
the tensors that it reads and writes, and every tensor has memory from its first use to its last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from fuzz.bending import bent
from hypothesis import strategies as st

from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace, Value


@dataclass
class _Builder:
    """A step on its way."""

    dtype: str
    calls: list[Call] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    memory: list[Allocation] = field(default_factory=list)

    def tensor(self, *shape: int, role: Role, parameter: str = "", gradient_of: str = "") -> int:
        """A new tensor with memory of its own; one of an activation is born by the next call."""
        spec = TensorSpec(shape, self.dtype)
        before = role in (Role.PARAMETER, Role.OPTIMIZER_STATE, Role.INPUT)
        born = None if before else len(self.calls)
        self.memory.append(Allocation(spec.nbytes, born, None, role, parameter[:1] and "net"))
        number = len(self.memory) - 1
        self.values.append(Value(spec, number, None, parameter, gradient_of))
        return len(self.values) - 1

    def call(
        self, name: str, phase: Phase, module: str, reads: tuple[int, ...], writes: tuple[int, ...]
    ) -> None:
        """Add a call."""
        inputs, outputs = (
            tuple(self.values[value].spec for value in side) for side in (reads, writes)
        )
        op = Op(f"aten.{name}", inputs, outputs)
        self.calls.append(Call(op, phase, module, reads=reads, writes=writes))

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.values[value].spec.shape

    def trace(self, samples: int) -> Trace:
        """The step."""
        memory, values = tuple(self.memory), tuple(self.values)
        return Trace(tuple(self.calls), memory, "torch 2.11.0", samples=samples, values=values)


@st.composite
def drawn_steps(draw: st.DrawFn) -> Trace:
    """A step of one to four linear layers with activation functions, of any widths."""
    batch, *widths = draw(st.lists(st.integers(1, 64), min_size=3, max_size=6))
    made = _Builder(draw(st.sampled_from(["float32", "bfloat16", "float16"])))
    activations = [made.tensor(batch, widths[0], role=Role.INPUT)]
    weights = []
    for number, (inner, outer) in enumerate(pairwise(widths)):
        module = f"net.{number}"
        name = f"{module}.weight"
        weights.append(made.tensor(inner, outer, role=Role.PARAMETER, parameter=name))
        linear = made.tensor(batch, outer, role=Role.INTERMEDIATE)
        made.call("mm.default", Phase.FORWARD, module, (activations[-1], weights[-1]), (linear,))
        active = made.tensor(batch, outer, role=Role.INTERMEDIATE)
        made.call("relu.default", Phase.FORWARD, module, (linear,), (active,))
        activations.append(active)
    gradient = made.tensor(batch, widths[-1], role=Role.INTERMEDIATE)
    made.call("ones_like.default", Phase.BACKWARD, "", (activations[-1],), (gradient,))
    gradients = []
    for number in reversed(range(len(weights))):
        module, weight, before = f"net.{number}", weights[number], activations[number]
        named = made.values[weight].parameter
        turned = made.tensor(*made.shape(before)[::-1], role=Role.INTERMEDIATE)
        made.call("t.default", Phase.BACKWARD, module, (before,), (turned,))
        own = made.tensor(*made.shape(weight), role=Role.GRADIENT, gradient_of=named)
        made.call("mm.default", Phase.BACKWARD, module, (turned, gradient), (own,))
        gradients.append((weight, own))
        transposed = made.tensor(*made.shape(weight)[::-1], role=Role.INTERMEDIATE)
        made.call("t.default", Phase.BACKWARD, module, (weight,), (transposed,))
        below = made.tensor(*made.shape(before), role=Role.INTERMEDIATE)
        made.call("mm.default", Phase.BACKWARD, module, (gradient, transposed), (below,))
        gradient = below
    for weight, own in gradients:
        made.call("add_.Tensor", Phase.OPTIMIZER, "", (weight, own), (weight,))
    return made.trace(batch)


@st.composite
def bent_steps(draw: st.DrawFn) -> Trace:
    """A valid step in which one to three fields are bent."""
    random = draw(st.randoms(use_true_random=False))
    return bent(draw(drawn_steps()), random)
