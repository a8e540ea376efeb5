"""The buffers of a compiled graph: what each scheduled node allocates, takes over and frees.

Inductor decides on this while it writes the code that calls the kernels: a kernel may write over an
input that nothing needs any more, and a buffer that is not needed any more may be kept for a later
one of the same size. Here Inductor's own functions decide; the code is not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch._inductor.codegen import wrapper as wrappers
from torch._inductor.codegen.common import Kernel
from torch._inductor.virtualized import V

from wavecast.frameworks.pytorch.compiled.node_accesses import kept_inside


class Taken(NamedTuple):
    """A buffer that gets memory."""

    name: str
    source: str | None = None
    """The buffer whose memory it gets. None for new memory."""
    is_shared: bool = False
    """Whether it is a part of the source, which lives on."""


class NodeBuffers(NamedTuple):
    """What happens to buffers when one scheduled node runs."""

    taken: tuple[Taken, ...]
    freed: tuple[str, ...]
    """What is freed after it."""


class _Ran(NamedTuple):
    """The place of a node among the lines of the wrapper."""

    number: int


def buffers_of(graph: Any, is_inference: bool) -> list[NodeBuffers]:
    """What each scheduled node of a graph (`GraphLowering`) does to buffers, in order.

    Results of calls that allocate themselves are not among the taken buffers. The graph must be
    the present one (`inductor.handling`), and can be planned only once.
    """
    wrapper, scheduler = graph.wrapper_code, graph.scheduler
    for number, node in enumerate(scheduler.nodes):
        _run(graph, node)
        wrapper.lines.append(_Ran(number))
        if type(node).__name__ != "NopKernelSchedulerNode":
            scheduler.free_buffers()
        scheduler.available_buffer_names.update(node.get_buffer_names())
        scheduler.completed_operations.update(node.get_operation_names())
    wrapper.run_wrapper_ir_passes(is_inference)
    return list(_read(wrapper.lines, len(scheduler.nodes)))


def _run(graph: Any, node: Any) -> None:
    """Let Inductor allocate for a node, as it does when it writes the node's kernel."""
    members = list(node.get_nodes())
    scheduler = graph.scheduler
    scheduler.current_node = node
    scheduler.buffer_names_to_free.update(node.last_usage)
    kernel = Kernel(increase_kernel_count=False)
    with V.set_kernel_handler(kernel):
        for member in members:
            member.decide_inplace_update()
        for member in members:
            member.mark_run()
    if not node.is_extern():
        inside = kept_inside(members)
        graph.removed_buffers.update(_removed(inside, kernel.args.inplace_buffers))


def _removed(inside: set[str], updated: Any) -> Iterator[str]:
    """The buffers that get no memory.

    One that never leaves the kernel does get memory if it is the first that a kernel writes where
    it later writes one that does.
    """
    for name in inside:
        names = getattr(updated.get(name), "other_names", ())
        if all(other in inside for other in names):
            yield name


def _read(lines: Sequence[Any], count: int) -> Iterator[NodeBuffers]:
    """The planned lines, by node: those before it allocate for it, those after it free."""
    taken: list[list[Taken]] = [[] for _ in range(count + 1)]
    freed: list[list[str]] = [[] for _ in range(count)]
    present = 0
    for line in lines:
        if isinstance(line, _Ran):
            present = line.number + 1
        elif isinstance(line, wrappers.AllocateLine):
            taken[present].append(Taken(line.node.get_name()))
        elif isinstance(line, wrappers.ReuseLine):
            taken[present].append(Taken(line.reused_as.get_name(), line.node.get_name()))
        elif isinstance(line, wrappers.ReinterpretLine):
            names = line.reused_as.get_name(), line.node.get_name()
            taken[present].append(Taken(*names, is_shared=True))
        elif isinstance(line, wrappers.FreeLine) or (
            isinstance(line, wrappers.FreeIfNotReusedLine) and not line.is_reused
        ):
            freed[max(present - 1, 0)].append(line.node.get_name())
    for number in range(count):
        yield NodeBuffers(tuple(taken[number]), tuple(freed[number]))
