"""The op that a kernel belongs to, among the nested ops of the host, and its name in a Trace.

A convolution is four ops deep: conv2d calls convolution, which calls _convolution, which calls
cudnn_convolution. A trace of our own has one of them: the first that the dispatcher does not split
above autograd. From a profiler file, we take the outermost op that the table of ops knows.
"""

from __future__ import annotations

import re
from functools import cache, partial

from wavecast import ops
from wavecast.frameworks.kineto.event_tree import Inherited, Node
from wavecast.ops import Kind
from wavecast.traces import kernel_names
from wavecast.traces.step import Op

# Ops that the table knows, but that the dispatcher splits (CompositeImplicitAutograd without a
# CUDA kernel, torch 2.13). The ops that they call are taken instead.
_SPLIT = frozenset(
    f"aten.{name}"
    for name in """
    __and__ __iand__ __ior__ __ixor__ __or__ __xor__ _version absolute absolute_ adjoint arccos
    arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan_ arctan2 arctan2_
    arctanh arctanh_ argsort broadcast_to chunk clip clip_ conj contiguous diag divide divide_
    expand_as fill_diagonal_ fix fix_ flatten float_power float_power_ greater greater_
    greater_equal greater_equal_ imag isfinite less less_ less_equal less_equal_ mH mT matrix_H
    mish_backward moveaxis movedim msort multiply multiply_ nanmean narrow negative negative_
    not_equal not_equal_ numpy_T pin_memory positive real relu6 relu6_ requires_grad_ reshape
    reshape_as resolve_conj resolve_neg rrelu rrelu_ selu selu_ special_digamma special_ndtr
    square square_ subtract subtract_ swapaxes swapaxes_ swapdims swapdims_ tensor_split tile to
    true_divide true_divide_ unflatten unsafe_chunk vander view_as
    """.split()
)
# Ops of which the dispatcher splits some overloads, often into another overload of the same name.
_SOMETIMES_SPLIT = frozenset(
    f"aten.{name}"
    for name in """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d linear max min
    repeat_interleave split std std_mean var var_mean where
    """.split()
)

# Queries about a tensor, which our own traces leave out, too.
_QUERIES = (
    "prim.",
    "profiler.",
    "aten.is_",
    "aten._use_",
    "aten.sym_",
    "aten.size",
    "aten.stride",
    "aten.detach",
)

_OP = re.compile(r"\w+(?:::[\w.]+)*(?:<.*>)?")
# Ranges of the profiler that enclose whole models and are not ops.
_RANGES = ("autograd::engine::", "CompiledF", "TorchDynamo", "torch_compile")

_COMMUNICATION_NODES = ("nccl:", "c10d::", "_c10d_functional::", "c10d_functional::")
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "reducescatter": "reduce_scatter",
}


def op_name(node: Node) -> str:
    """The name of an op in a trace: `aten.mm` for `aten::mm`."""
    return node.name.replace("::", ".", 1)


@cache
def kind_of(name: str) -> Kind | None:
    """The kind of an op. None if the op is unknown, or a query about a tensor."""
    return None if name.startswith(_QUERIES) else ops.kind(Op(name, (), ()))


def is_split(name: str, always: bool = False) -> bool:
    """Whether the dispatcher splits an op into others, at least for some of its overloads.

    With `always`, only ops count that are split for every overload.
    """
    return name in _SPLIT or (not always and name in _SOMETIMES_SPLIT)


def is_communication(kernel: str) -> bool:
    """Whether a kernel communicates between GPUs, by its name."""
    return kernel_names.collective_in(kernel) is not None


class Owners:
    """The ops that kernels belong to, among the nested ops around the call that launched them."""

    def __init__(self) -> None:
        self._communications = communications()
        # The op that our own trace would have is the outermost that is not split into others.
        self._working = Inherited(partial(_whole, views=False), outermost=True)
        self._whole = Inherited(partial(_whole, views=True), outermost=True)
        self._recognised = Inherited(lambda node: node if _kind(node) is not None else None)
        self._ops = Inherited(lambda node: node if _is_op(node) else None)

    def of(self, launch: Node, kernel: str) -> Node:
        """The op that a kernel belongs to; the launch itself if no known op encloses it.

        Args:
            launch: the runtime call that launched the kernel.
            kernel: the name of the kernel.
        """
        facts = self._working, self._whole, self._recognised, self._ops
        chosen = next(filter(None, (fact.of(launch.parent) for fact in facts)), None)
        outermost = self._communications.of(launch.parent)
        if outermost is not None and (
            chosen is None
            or is_communication(kernel)
            or kind_of(op_name(chosen)) in (None, Kind.COLLECTIVE)
        ):
            return outermost
        if chosen is None or is_communication(kernel):
            return launch
        return chosen


def _kind(node: Node) -> Kind | None:
    return kind_of(op_name(node)) if node.span.category == "cpu_op" else None


def _whole(node: Node, views: bool) -> Node | None:
    """A node of a known op that is not split into others, and perhaps not a view."""
    kind = _kind(node)
    if kind is None or (kind is Kind.VIEW and not views) or is_split(op_name(node)):
        return None
    return node


def _is_op(node: Node) -> bool:
    is_named = bool(_OP.fullmatch(node.name)) and not node.name.startswith(_RANGES)
    return is_named and node.span.category == "cpu_op"


def is_communication_node(node: Node) -> bool:
    """Whether a node communicates between GPUs."""
    return node.name.startswith(_COMMUNICATION_NODES) or node.name == "record_param_comms"


def communications() -> Inherited[Node]:
    """The outermost communication of each node."""
    return Inherited(lambda node: node if is_communication_node(node) else None, outermost=True)


def launch_name(launch: str, kernels: tuple[str, ...]) -> str:
    """The name of a launch that no op encloses, from the kernel's name.

    Args:
        launch: the name of the runtime call.
        kernels: the names of the kernels that it launched. A CUDA graph launches many.
    """
    if len(kernels) != 1:
        return f"kernel.{launch}"
    collective = kernel_names.collective_in(kernels[0])
    if collective:
        return f"nccl.{collective}"
    if kernel_names.is_triton(kernels[0]):
        return f"triton.{kernels[0]}"
    return f"kernel.{kernel_names.short_name(kernels[0])}"


def collective_name(annotation: str) -> str:
    """The name of a collective in a trace: `nccl.all_reduce` for "nccl:all_reduce", "allreduce"."""
    words = annotation.rpartition(":")[2].split() or ["unknown"]
    word = words[0].strip("_").removesuffix("_base")
    return f"nccl.{_COLLECTIVES.get(word, word)}"


_SYNCHRONIZATIONS = re.compile(r"(?:cuda|hip|cu)(Device|Ctx|Stream|Event)Synchronize\w*")


def synchronization_name(runtime: str) -> str | None:
    """The name in a trace of a runtime call in which the host waits. None for other calls."""
    match = _SYNCHRONIZATIONS.fullmatch(runtime)
    if match is None:
        return None
    what = match[1].lower()
    return "cuda.synchronize" if what in ("device", "ctx") else f"cuda.{what}_synchronize"
