"""Steps with mixtures of experts as if Megatron ran them, with fused kernels and its dispatchers.

Megatron-Core multiplies the gate, and brings the results of experts back to their words, in one
kernel each. Its dispatchers DeepEP and HybridEP send a word only once to a rank, or over the
network once to a machine, where several of its experts are, and permute words where they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lab.measured.expert_steps import NEMO
from lab.measured.fused_kernels import fused
from wavecast.hardware.cluster import Cluster
from wavecast.parallel.editing import Edit
from wavecast.parallel.ranks import ModelPart, ParallelStep
from wavecast.parallel.spreading import backward_end
from wavecast.traces.step import Call, Op, TensorSpec, Trace

FUSED = ("activation", "combine")
"""The modules of `wavecast.suite.mixtures` that run as one kernel."""


@dataclass(frozen=True)
class Routes:
    """How many ranks and machines have the experts of a word, if words are spread evenly."""

    experts: int
    top_k: int
    ranks: int
    machines: int

    def met(self, groups: int) -> float:
        """The groups of experts, of so many equal ones, in which a word has an expert."""
        others = self.experts - self.experts // groups
        missed = 1.0
        for chosen in range(self.top_k):
            missed *= max(others - chosen, 0) / (self.experts - chosen)
        return groups * (1.0 - missed)


def as_run(step: ParallelStep, row: Mapping[str, Any], cluster: Cluster) -> ParallelStep:
    """A spread step of a row with a mixture of experts, as its framework runs it."""
    if NEMO.search(str(row["framework"])):
        step = with_megatron_kernels(step)
    if "Megatron-Bridge" in str(row["framework"]) and step.strategy.expert > 1:
        step = with_words_sent_once(step, cluster, int(row["n_experts"]), int(row["top_k"]))
    return step


def with_megatron_kernels(step: ParallelStep) -> ParallelStep:
    """A spread step whose gates and combinations are one kernel each."""
    return _changed(step, lambda trace: fused(trace, FUSED))


def with_words_sent_once(
    step: ParallelStep, cluster: Cluster, experts: int, top_k: int
) -> ParallelStep:
    """A spread step whose all-to-alls send a word once to each rank, or machine, that needs it."""
    axis = step.strategy.axes["expert"]
    per_machine = max(cluster.domain_gpus // axis.stride, 1)
    machines = max(axis.size // per_machine, 1)
    routes = Routes(experts, top_k, axis.size, machines)
    return _changed(step, lambda trace: _sent_once(trace, routes, per_machine))


def _changed(step: ParallelStep, change: Callable[[Trace], Trace]) -> ParallelStep:
    def part(one: ModelPart) -> ModelPart:
        last = change(one.last)
        return ModelPart(change(one.plain), last, backward_end(last))

    groups = tuple(replace(group, parts=tuple(map(part, group.parts))) for group in step.groups)
    return replace(step, groups=groups)


def _sent_once(trace: Trace, routes: Routes, per_machine: int) -> Trace:
    edit = Edit(replace(trace, allocations=()))
    sent = False
    for position, call in enumerate(trace):
        if call.op.name == "nccl.all_to_all" and len(call.op.inputs[0].shape) == 2:
            edit.replace_op(position, _exchange(call, routes, per_machine))
            sent = True
        elif sent and call.op.name == "aten.index.Tensor":  # words are permuted once, by the layer
            edit.leave_out(range(position, position + 1))
            sent = False
    return edit.made()


def _exchange(call: Call, routes: Routes, per_machine: int) -> Op:
    """The exchange that takes longest: over the network if there are several machines."""
    copies, width = call.op.inputs[0].shape
    words = copies / routes.top_k
    stride = call.op.attr("stride", 1)
    assert isinstance(stride, int)
    if routes.machines > 1:
        met, ranks, apart = routes.met(routes.machines), routes.machines, stride * per_machine
    else:
        met, ranks, apart = routes.met(routes.ranks), routes.ranks, stride
    tensor = TensorSpec((max(round(words * met), 1), width), call.op.inputs[0].dtype)
    return Op(call.op.name, (tensor,), (tensor,), (("ranks", ranks), ("stride", apart)))
