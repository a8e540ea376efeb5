"""Shortcuts for the scheduler's fusion: pairs of nodes that cannot be one kernel, and loops.

A tensor that all layers add to, or a mask that all of them read, makes pairs of all of its users,
and most of these are layers apart. Torch weighs what each pair shares before it asks what lies
between.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor import scheduler as schedulers
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

from wavecast.frameworks.pytorch.compiled.shortcuts import in_place_of

_SCHEDULER = "torch._inductor.scheduler:Scheduler"
_RELIES = (
    (f"{_SCHEDULER}._can_fuse_impl", "8f5e35d55d65"),
    (f"{_SCHEDULER}._can_fuse", "09743de26888"),
    (f"{_SCHEDULER}.can_fuse_vertical", "2945508f6c66"),
    (f"{_SCHEDULER}.fusable_weak_dep", "07ad34fb90cd"),
    (f"{_SCHEDULER}.are_long_distant_nodes", "189a8c6e3043"),
    (f"{_SCHEDULER}.shared_data_after_inverting_indexing", "311f2ba2f134"),
    ("torch._inductor.scheduler:MixOrderReduction.can_fuse", "27aafac6f1dc"),
    ("torch._inductor.choices:InductorChoices.can_fuse_horizontal", "241766867f5e"),
)
"""What torch asks of a pair: the questions below are among these."""


@in_place_of(_SCHEDULER, "can_fuse", "f02f9850a537", *_RELIES)
def screen_pairs(original: Any) -> Any:
    """Whether two nodes can be one kernel: mostly what lies between them says that they cannot."""
    plain = frozenset({schedulers.SchedulerNode, schedulers.FusedSchedulerNode})

    def can_fuse(self: Any, node1: Any, node2: Any, *args: Any, **options: Any) -> bool:
        if type(node1) in plain and type(node2) in plain and _are_apart(self, node1, node2):
            return False
        return bool(original(self, node1, node2, *args, **options))

    return can_fuse


def _are_apart(scheduler: Any, node1: Any, node2: Any) -> bool:
    """Whether two nodes cannot be one kernel, whatever they share and whichever their loops are."""
    if node1.is_template() or node2.is_template() or _may_be_inverted(node2):
        return False
    names1, ancestors = node1.get_operation_names()._dict, node2.ancestors._dict
    if not names1.keys().isdisjoint(ancestors):
        return _is_between(scheduler, node1, node2)
    if node1.is_reduction() and node2.is_reduction():
        return False  # sums over different dimensions may be fused from afar
    return _judges_distance() and bool(scheduler.are_long_distant_nodes(node1, node2))


def _may_be_inverted(node: Any) -> bool:
    """Whether torch may exchange where a node reads and writes, which stays if it is not fused."""
    if not inductor_config.loop_index_inversion_in_fusion:
        return False
    accesses = node.read_writes
    return len(accesses.reads) <= 1 and len(accesses.writes) <= 1


def _judges_distance() -> bool:
    """Whether nodes far apart that only read the same are left apart, as torch does by default."""
    return V.choices.can_fuse_horizontal is InductorChoices.can_fuse_horizontal


def _is_between(scheduler: Any, node1: Any, node2: Any) -> bool:
    """Whether another node that reads what the first writes must run before the second."""
    names, renamed = node1.get_operation_names()._dict.keys(), scheduler.mutation_renames
    made = {renamed.get(dep.name, dep.name) for dep in node1.read_writes.writes}
    made.update(node1.get_buffer_names())
    for dep in node2.unmet_dependencies:
        if dep.name in made or renamed.get(dep.name, dep.name) in made:
            continue
        op = scheduler.name_to_buf[dep.name].defining_op_name()
        between = scheduler.name_to_fused_node[op]
        if not names.isdisjoint(between.ancestors._dict):
            return True
    return False


@in_place_of(_SCHEDULER, "will_fusion_create_cycle", "cb9b9023b322")
def seek_cycles(_original: Any) -> Any:
    """Whether earlier fusions lead from one of two nodes to the other, which must run before."""
    fused = schedulers.FusedSchedulerNode

    def will_fusion_create_cycle(self: Any, node1: Any, node2: Any) -> bool:
        names = node1.get_operation_names()._dict.keys() | node2.get_operation_names()._dict.keys()
        before = (node1.ancestors._dict.keys() | node2.ancestors._dict.keys()) - names
        waiting, seen = [before], set[Any]()
        while waiting:
            for node in {self.name_to_fused_node[name] for name in waiting.pop()} - seen:
                seen.add(node)
                if not isinstance(node, fused) or node.get_operation_names()._dict.keys() <= before:
                    continue
                above = node.ancestors._dict.keys()
                if not names.isdisjoint(above):
                    return True
                waiting.append(above - before)
        return False

    return will_fusion_create_cycle


@in_place_of("torch._inductor.loop_body:LoopBody", "reindex_iter_loops", "13dc6ebddc69")
def remember_loops(original: Any) -> Any:
    """The body of a kernel with other loops. It is tried for one neighbour after the other."""

    def reindex_iter_loops(self: Any, new_iter_sizes: Any) -> Any:
        known = vars(self).setdefault("_reindexed", {})
        key = tuple(new_iter_sizes), _state_of(self)
        body, state = known.get(key, (None, None))
        if body is None or _state_of(body) != state:  # torch may have changed it since
            body = original(self, new_iter_sizes)
            known[key] = body, _state_of(body)
        return body

    return reindex_iter_loops


def _state_of(body: Any) -> tuple[Any, ...]:
    """What torch may change of a kernel's body."""
    return body.sizes, tuple(body.indexing_exprs.items()), body.root_block


SHORTCUTS = (screen_pairs, seek_cycles, remember_loops)
