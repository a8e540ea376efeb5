"""The grouped products of a mixture of experts, and how tensor ranks divide them.

The first product of the experts is divided by columns and the last by rows. The results are reduced
where they have been put back into the order of the words, as Hugging Face and Megatron do. With
sequence parallelism the ranks divide the words instead, and each has whole experts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from wavecast.parallel.splits import Split
from wavecast.traces.step import Phase, TensorSpec, Trace

GROUPED = "aten._grouped_mm"

_Key = tuple[str, tuple[int, ...], bool]
"""A module, the shape of one of its weights, and whether it is turned."""


def grouped_products(trace: Trace) -> dict[str, list[int]]:
    """The positions of the grouped products of each module."""
    places: dict[str, list[int]] = defaultdict(list)
    for position, call in enumerate(trace):
        if call.op.base == GROUPED:
            places[call.module].append(position)
    return places


def expert_counts(trace: Trace) -> set[int]:
    """The numbers of experts of the mixtures of a step."""
    weights = (
        trace.calls[position].op.inputs[1].shape
        for positions in grouped_products(trace).values()
        for position in positions
    )
    return {shape[0] for shape in weights if len(shape) == 3}


def routers(trace: Trace) -> set[tuple[str, int]]:
    """The modules that choose experts by the largest of so many values, which a router gives."""
    return {
        (call.module, call.op.inputs[0].shape[-1])
        for call in trace
        if call.op.base == "aten.topk" and call.op.inputs and call.op.inputs[0].shape
    }


@dataclass(frozen=True)
class Mixtures:
    """The layers of experts of a step, as tensor ranks divide them."""

    weights: dict[_Key, Split]
    ends: frozenset[int]
    """The calls that give partial sums: of the output, and of the gradient of the input."""
    positions: frozenset[int]
    """The grouped products."""

    @staticmethod
    def of(trace: Trace, divided: bool) -> Mixtures:
        """The mixtures of a step; none where the experts are not to be divided."""
        weights: dict[_Key, Split] = {}
        ends: set[int] = set()
        places = grouped_products(trace) if divided else {}
        for module, positions in places.items():
            ahead = [p for p in positions if trace.calls[p].phase is Phase.FORWARD]
            if len(ahead) < 2:
                continue
            for position in ahead:
                weights |= _weights(trace, module, position, columns=position != ahead[-1])
            wide = trace.calls[ahead[0]].op.inputs[0].shape[-1]
            ends |= _ends(trace, module, wide)
        products = {p for positions in places.values() for p in positions}
        return Mixtures(weights, frozenset(ends), frozenset(products))

    def split(self, module: str, tensor: TensorSpec) -> Split | None:
        """The division of a tensor, if it is a weight of experts or its gradient."""
        return self.weights.get((module, tensor.shape, tensor.strides is not None))


def _weights(trace: Trace, module: str, position: int, columns: bool) -> dict[_Key, Split]:
    """The divisions of one weight of all experts, as it is stored and turned."""
    weight = trace.calls[position].op.inputs[1]
    experts, wide_in, wide_out = weight.shape
    turned = weight.strides is not None
    count, dim = (wide_out, 2) if columns else (wide_in, 1)
    return {
        (module, (experts, wide_in, wide_out), turned): Split(dim, count),
        (module, (experts, wide_out, wide_in), not turned): Split(3 - dim, count),
    }


def _ends(trace: Trace, module: str, wide: int) -> set[int]:
    """The last calls of a module, in each pass, that give as many features as it reads."""
    last: dict[Phase, int] = {}
    for position, call in enumerate(trace):
        made = call.op.outputs
        if call.module == module and made and len(made[0].shape) > 1 and made[0].shape[-1] == wide:
            last[call.phase] = position
    return {p for phase, p in last.items() if phase in (Phase.FORWARD, Phase.BACKWARD)}
