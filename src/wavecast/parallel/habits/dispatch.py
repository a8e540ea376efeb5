"""Dispatch of tokens to experts as DeepEP and HybridEP do it: each token is sent once.

A token goes once to each rank, or over the network once to each machine, that has one of its
experts. It is permuted where it arrives, by the kernel that receives it. Tokens are taken to be
spread evenly over the experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.parallel.strategy import RankAxis
from wavecast.traces.editing import Edit
from wavecast.traces.step import Call, Op, TensorSpec, Trace


@dataclass(frozen=True)
class Routes:
    """The experts of a mixture, and how many of them each token goes to."""

    experts: int
    top_k: int

    def groups_met(self, groups: int) -> float:
        """In how many of so many equal groups of experts a token has an expert, on average."""
        others = self.experts - self.experts // groups
        missed = 1.0
        for chosen in range(self.top_k):
            missed *= max(others - chosen, 0) / (self.experts - chosen)
        return groups * (1.0 - missed)


def with_dispatch_once(trace: Trace, axis: RankAxis, domain_gpus: int | None) -> Trace:
    """A rank's step whose all-to-alls send a token once to each rank, or machine, that needs it.

    Args:
        trace: the step of one rank.
        axis: the ranks that share the experts.
        domain_gpus: the GPUs of one machine. None if all ranks are in one.

    Raises:
        InvalidInput: the step does not say to how many experts a token goes.
    """
    on_machine = axis.size if domain_gpus is None else max(domain_gpus // axis.stride, 1)
    routes = _routes(trace, axis.size)
    edit = Edit(trace)
    sent: int | None = None
    for position, call in enumerate(trace):
        if call.op.name == "nccl.all_to_all" and len(call.op.inputs[0].shape) == 2:
            edit.replace_op(position, _exchange(call, routes, axis, on_machine))
            sent = position
        elif sent is not None and call.op.base == "aten.index":
            edit.remove([position])
            edit.replace_op(
                sent, _exchange(trace.calls[sent], routes, axis, on_machine), writes=call.writes
            )
            sent = None
    return edit.trace()


def _routes(trace: Trace, ranks: int) -> Routes:
    matmuls = (call.op for call in trace if "grouped_mm" in call.op.base)
    own = next((op.inputs[1].shape[0] for op in matmuls if len(op.inputs[1].shape) == 3), None)
    chosen = next((c.op.outputs[0].shape[-1] for c in trace if c.op.base == "aten.topk"), None)
    if own is None or chosen is None:
        raise InvalidInput(
            "dispatch_once needs to know to how many experts each token goes, and the step has no "
            "grouped matmul of experts, or no topk that chooses among them"
        )
    return Routes(own * ranks, chosen)


def _exchange(call: Call, routes: Routes, axis: RankAxis, on_machine: int) -> Op:
    """The exchange that takes longest: over the network if there are several machines."""
    copies, width = call.op.inputs[0].shape
    machines = max(axis.size // on_machine, 1)
    groups, stride = (
        (machines, axis.stride * on_machine) if machines > 1 else (axis.size, axis.stride)
    )
    tokens = round(copies / routes.top_k * routes.groups_met(groups))
    tensor = TensorSpec((max(tokens, 1), width), call.op.inputs[0].dtype)
    return Op(call.op.name, (tensor,), (tensor,), (("ranks", groups), ("stride", stride)))
