"""Shortcuts for the passes over a graph: what they look for, and what they do again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor import config as inductor_config
from torch._inductor import fx_utils, ir, pattern_matcher
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx._lazy_graph_module import _get_graph_module_cls
from torch.utils._ordered_set import OrderedSet

from wavecast.frameworks.pytorch.capture.replacements import replacing
from wavecast.frameworks.pytorch.compiled.quick_structures import leaves_of
from wavecast.frameworks.pytorch.compiled.shortcuts import in_place_of

_Node = torch.fx.Node
_MATCHER = "torch._inductor.pattern_matcher"
_STAGES = "torch._functorch._aot_autograd.graph_compile"
_USUAL = frozenset(
    {torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.int32}
)
"""Types for which Inductor has all kernels."""


@in_place_of(f"{_MATCHER}:PatternExpr", "match", "343a4ebb4c5f")
def match_pattern(original: Any) -> Any:
    """Whether a pattern matches a node: mostly the ops of its neighbours say that it does not."""
    no_match = pattern_matcher.FailedMatch("function_mismatch")
    cannot_match = _excluding()

    def match(self: Any, node: Any) -> Any:
        return no_match if cannot_match(self, node) else original(self, node)

    return match


class _Needs(NamedTuple):
    """What a pattern asks of a node."""

    op: str
    targets: frozenset[int]
    """The identities of the functions: torch computes the hash of an op anew each time."""
    arguments: int
    users: int | None
    """None for any number."""
    keywords: int | None
    """None if more is to be known of the arguments than here."""
    inner: tuple[tuple[int, _Needs], ...]
    """The arguments that are to be the results of ops, too, by their places."""


def _needs_of(pattern: Any) -> _Needs | None:
    """What a pattern asks; None if this does not say that a node cannot match."""
    call = pattern_matcher._TargetArgsExpr
    if not isinstance(pattern, call) or type(pattern)._match is not call._match:
        return None
    if pattern.op != "call_function":
        return None
    users = None if pattern.users is pattern_matcher.MULTIPLE else pattern.users
    is_simple = pattern.flatten is call.simple_flatten
    inner = ((place, _needs_of(each)) for place, each in enumerate(pattern.args))
    return _Needs(
        pattern.op,
        frozenset(map(id, pattern.fns_set)),
        len(pattern.args),
        users,
        len(pattern.kwargs) if is_simple else None,
        tuple((place, needs) for place, needs in inner if needs is not None),
    )


def _excluding() -> Callable[[Any, Any], bool]:
    """Tells whether ops, numbers of arguments or numbers of users rule out a match."""
    known: dict[int, tuple[Any, _Needs | None]] = {}  # with the pattern, whose identity is the key

    def cannot_match(pattern: Any, node: Any) -> bool:
        try:
            _, needs = known[id(pattern)]
        except KeyError:
            _, needs = known[id(pattern)] = pattern, _needs_of(pattern)
        return needs is not None and not _may_match(needs, node, is_root=True)

    return cannot_match


def _may_match(needs: _Needs, node: Any, is_root: bool = False) -> bool:
    # This is asked a hundred thousand times; a node's arguments are behind Python properties.
    if not isinstance(node, _Node) or node.op != needs.op or id(node.target) not in needs.targets:
        return False
    if not (is_root or needs.users is None or len(node.users) == needs.users):
        return False
    arguments = node.args
    if len(arguments) != needs.arguments:
        return False
    if needs.keywords is None or (needs.keywords and len(node.kwargs) < needs.keywords):
        return True
    for place, inner in needs.inner:  # noqa: SIM110
        if not _may_match(inner, arguments[place]):
            return False
    return True


@in_place_of(_MATCHER, "_should_debug_node", "e15b54c4849f")
def report_nothing(_original: Any) -> Any:
    """Whether to report what was tried at a node. A trace is silent."""
    return lambda _name: False


@in_place_of("torch._inductor.lowering", "fallback_node_due_to_unsupported_type", "e239b0aeb63c")
def check_types(original: Any) -> Any:
    """Whether Inductor has no kernels for the types of a node's tensors."""

    def is_unsupported(node: Any, allow_cpu_inputs: bool = True) -> bool:
        values = (each.meta.get("val") for each in (node, *node.all_input_nodes))
        if not inductor_config.disable_cpp_codegen and all(map(_is_usual, values)):
            return False
        return bool(original(node, allow_cpu_inputs))

    return is_unsupported


def _is_usual(value: Any) -> bool:
    if not isinstance(value, FakeTensor):
        return value is None
    return value.dtype in _USUAL and value.layout is torch.strided and not value.is_meta


@in_place_of("torch._inductor.fx_utils:FakeTensorUpdater", "incremental_update", "9f2e167a3633")
def update_values(original: Any) -> Any:
    """Renew the values of the nodes that have changed, and say how many there are."""

    def incremental_update(self: Any) -> int:
        if self.subgraph_updaters:
            return int(original(self))
        nodes, before = list(self.gm.graph.nodes), self.processed_hashes
        hashes = [self.hash_node(node) for node in nodes]
        self.processed_hashes = OrderedSet(hashes)
        if all(each in before for each in hashes):
            return 0
        storages = Counter(filter(None, map(fx_utils.get_node_storage, nodes)))
        renewed, users = 0, set[Any]()
        for node, each in zip(nodes, hashes, strict=True):
            if (node in users or each not in before) and _renew(self.gm, node, storages):
                renewed += 1
                users.update(node.users)
        return renewed

    return incremental_update


def _renew(gm: Any, node: Any, storages: Counter[int]) -> bool:
    """Compute the value of a node again; whether it differs from the one before."""
    is_known, args, kwargs = fx_utils.get_fake_args_kwargs(node, gm)
    is_op = callable(node.target) and not hasattr(node.target, "_inductor_lowering_function")
    if not is_known or not is_op:
        return False
    with V.fake_mode, enable_python_dispatcher():
        value = node.target(*args, **kwargs)
    before = node.meta.get("val")
    if "val" in node.meta and (
        _is_only_elsewhere(node, value, storages)
        or fx_utils._is_fake_tensor_same(value, before, storages, node=node)
    ):
        return False
    shapes = V.fake_mode.shape_env
    fx_utils.rebind_unbacked(shapes, node, value)
    node.meta["val"] = value
    bindings = fx_utils.compute_unbacked_bindings(shapes, value) if shapes else None
    if bindings:
        node.meta["unbacked_bindings"] = bindings
    storage = fx_utils.get_node_storage(node)
    if storage:
        storages[storage] += 1
    return True


def _is_only_elsewhere(node: Any, value: Any, storages: Counter[int]) -> bool:
    """Whether a new value differs from that before by its memory alone, which is new and which only
    views of the node shared. Torch would renew all that follows, for the same views."""
    before = node.meta["val"]
    if not (isinstance(value, FakeTensor) and isinstance(before, FakeTensor)):
        return False
    if fx_utils.get_storage(value) in storages or value.storage_offset() != before.storage_offset():
        return False
    if not fx_utils._is_fake_tensor_same(value, before, storages, check_storage=False):
        return False
    storage = fx_utils.get_storage(before)
    views, found = [node], {node}
    for view in views:  # which grows meanwhile
        new = [n for n in view.users if n not in found and fx_utils.get_node_storage(n) == storage]
        views.extend(new)
        found.update(new)
    return len(found) == storages[storage]


@in_place_of("torch._inductor.utils", "gather_origins", "0bc69e87e146")
def collect_origins(_original: Any) -> Any:
    """The nodes whose values are not yet computed, and become part of what reads them."""
    realized = ir.ComputedBuffer, ir.InputsKernel, ir.InputBuffer, ir.TemplateBuffer

    def is_unrealized(value: Any) -> bool:
        while isinstance(value, ir.TensorBox | ir.StorageBox):
            value = value.data
        return isinstance(value, ir.IRNode) and not isinstance(value, realized)

    def gather_origins(args: Any, kwargs: Any) -> Any:
        leaves = filter(is_unrealized, itertools.chain(leaves_of(args), leaves_of(kwargs)))
        return OrderedSet(itertools.chain.from_iterable(leaf.origins for leaf in leaves))

    return gather_origins


@in_place_of(
    "torch._functorch.partitioners",
    "reordering_to_mimic_autograd_engine",
    "a86ba67f649e",
    ("torch.fx._lazy_graph_module:_LazyGraphModule", "bb33cad1b229"),
)
def reorder_without_code(original: Any) -> Any:
    """The backward graph in another order, as a module whose Python code is made when it is called.
    Torch makes it at once, again after the next pass, and again for a copy."""

    def reorder(gm: Any) -> Any:
        with ExitStack() as stack:
            replacing(stack)(torch.fx, GraphModule=_get_graph_module_cls())
            return original(gm)

    return reorder


@in_place_of(_STAGES, "_log_joint_graph", "b6cc3aa71cbb")
def leave_out_joint_text(_original: Any) -> Any:
    """The text of the joint graph, which nobody reads."""
    return lambda *_, **__: None


@in_place_of(_STAGES, "_log_fw_bw_graphs", "685f255abe25")
def leave_out_texts(_original: Any) -> Any:
    """The texts of the forward and the backward graph, which nobody reads."""
    return lambda *_, **__: (None, None)


SHORTCUTS = (
    *(match_pattern, report_nothing, check_types),
    *(update_values, collect_origins, reorder_without_code),
    *(leave_out_joint_text, leave_out_texts),
)
