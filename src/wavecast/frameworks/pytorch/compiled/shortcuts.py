"""Functions of torch's compiler that quicker ones with equal results stand in for.

Torch walks over a graph dozens of times and asks small questions at each node. On a GPU that hides
behind the generation of code, which is left out here.

Each shortcut was written for one text of torch's function. Where the installed torch has another
one, torch's own function runs.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor import config as inductor_config
from torch._inductor import fx_utils, ir, pattern_matcher, sizevars
from torch._inductor import scheduler as schedulers
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx._lazy_graph_module import _get_graph_module_cls
from torch.utils import _config_module, _pytree
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from wavecast.frameworks.replacements import replacing

Function = Callable[..., Any]


@dataclass(frozen=True)
class Shortcut:
    """A quicker function that stands in for one of torch."""

    owner: str
    """The module of torch's function, or module and class, as "torch.fx.graph:Graph"."""
    name: str
    digest: str
    """The digest of the text of torch's function for which it was written."""
    make: Callable[[Any], Function]
    """Makes the quicker function; it is given torch's, for what it leaves to it."""
    relies: tuple[tuple[str, str], ...] = ()
    """Other functions of torch whose text it relies on, as "torch.fx.graph:Graph.lint", and the
    digests of these."""

    def stand_in(self) -> StandIn | None:
        """The function for the installed torch; None if torch has another text or other helpers."""
        try:
            owner = pkgutil.resolve_name(self.owner)
            original = vars(owner)[self.name]
            is_known = digest_of(original) == self.digest and all(
                digest_of(pkgutil.resolve_name(name)) == digest for name, digest in self.relies
            )
            return StandIn(owner, self.name, original, self.make(original)) if is_known else None
        except (ImportError, AttributeError, KeyError):
            return None


class StandIn(NamedTuple):
    """A shortcut that the installed torch allows."""

    owner: Any
    name: str
    original: Any
    function: Function


def digest_of(function: Any) -> str:
    """The digest of a function's text; empty if it has none."""
    try:
        text = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


SHORTCUTS: list[Shortcut] = []
"""All shortcuts of this module."""


def in_place_of(
    owner: str, name: str, digest: str, *relies: tuple[str, str]
) -> Callable[[Callable[[Any], Any]], Shortcut]:
    """A decorator that adds a shortcut to the table, given the function that makes it."""

    def register(make: Callable[[Any], Any]) -> Shortcut:
        SHORTCUTS.append(Shortcut(owner, name, digest, make, relies))
        return SHORTCUTS[-1]

    return register


@cache
def allowed(shortcuts: tuple[Shortcut, ...]) -> tuple[StandIn, ...]:
    """The shortcuts that the installed torch allows."""
    return tuple(filter(None, (shortcut.stand_in() for shortcut in shortcuts)))


@contextmanager
def taken(shortcuts: tuple[Shortcut, ...]) -> Iterator[None]:
    """Take these shortcuts where the installed torch allows it, inside the block."""
    with replacing() as replace:
        for shortcut in allowed(shortcuts):
            for place in _places(shortcut):
                replace(place, **{shortcut.name: shortcut.function})
        yield


def _places(shortcut: StandIn) -> Iterator[Any]:
    """The owner of a function, and the modules of torch that have imported it by its name."""
    yield shortcut.owner
    if isinstance(shortcut.owner, ModuleType):
        for name, module in list(sys.modules.items()):
            is_other = name.startswith("torch.") and module is not shortcut.owner
            if is_other and vars(module).get(shortcut.name) is shortcut.original:
                yield module


# Shortcuts for fake tensors: torch keeps the results of ops, and finds them by what goes in.


_FAKES = "torch._subclasses.fake_tensor"
_METADATA = (
    (f"{_FAKES}:extract_tensor_metadata", "63a9d204a477"),
    (f"{_FAKES}:TensorMetadata", "88e94798bbba"),
    (f"{_FAKES}:FakeTensorMode.is_our_fake", "e5705d713d49"),
    ("torch._subclasses.meta_utils:is_sparse_any", "2c1003b0a471"),
)
"""What makes the part of a key that stands for a tensor."""
_PLAIN = frozenset(
    {int, float, bool, complex, str, type(None)}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types of arguments that are part of a key as they are."""
_UNSET = (False, None, None, None)
"""What a key says of a dense tensor: it is not sparse, nor has it what sparse ones have."""


@in_place_of(f"{_FAKES}:FakeTensorMode", "_prep_args_for_hash", "5c9d4a6f14c8", *_METADATA)
def describe(original: Any) -> Any:
    """Adds to a key what it says of arguments."""

    def prepare(self: Any, result: Any, args: Any, state: Any, hashed: Any) -> None:
        if isinstance(args, list | tuple | dict):
            result += type(args), f"length_{len(args)}"
        if isinstance(args, dict):
            prepare(self, result, args.keys(), state, hashed)
            prepare(self, result, args.values(), state, hashed)
            return
        for arg in args:
            kind = type(arg)
            if kind in _PLAIN:
                result += kind, arg
            elif kind is list or kind is tuple:
                prepare(self, result, arg, state, hashed)
            elif kind is not FakeTensor or not _describe_tensor(self, result, arg):
                original(self, result, iter((arg,)), state, hashed)

    return prepare


def _describe_tensor(mode: Any, result: list[Any], tensor: Any) -> bool:
    """Add to a key what it says of a tensor; whether it is one of which this is known here."""
    if tensor.fake_mode is not mode or tensor.constant is not None:
        return False
    if tensor.layout is not torch.strided or tensor._has_symbolic_sizes_strides:
        return False
    shape, strides, memory_format = tensor.shape, tensor.stride(), None
    suggested = fake_tensor.suggest_memory_format(tensor)
    if tensor.is_contiguous(memory_format=suggested):
        memory_format = suggested
    nbytes = tensor.untyped_storage().nbytes()
    if type(nbytes) is not int:
        return False
    result += tensor.dtype, type(shape), f"length_{len(shape)}"
    result += [part for size in shape for part in (int, size)]
    result += type(strides), f"length_{len(strides)}"
    result += [part for stride in strides for part in (int, stride)]
    result += tensor.device, torch.strided, memory_format, tensor.storage_offset(), nbytes
    result += tensor.requires_grad, tensor.is_quantized, tensor.is_conj(), tensor.is_neg()
    result += tensor.is_inference(), *_UNSET
    return True


@in_place_of(
    f"{_FAKES}:FakeTensorMode",
    "_get_output_tensor_from_cache_entry",
    "548bbfc0ecc4",
    *_METADATA,
    (f"{_FAKES}:in_kernel_invocation_manager", "24e0b9912707"),
)
def make_again(original: Any) -> Any:
    """The result of an op that was run before, for other tensors of the same description."""

    def make(self: Any, state: Any, entry: Any, key: Any, func: Any, args: Any) -> Any:
        kept = entry.metadata
        if entry.inplace_idx is not None or kept is None or not _has_plain_sizes(kept):
            return original(self, state, entry, key, func, args)
        storage = None
        if isinstance(func, torch._ops.OpOverload) and func.is_view:
            storage = args[entry.view_idx].untyped_storage()
        shape, strides = tuple(kept.shape), tuple(kept.stride)
        options = {"dtype": kept.dtype, "device": "meta", "requires_grad": kept.requires_grad}
        with fake_tensor.in_kernel_invocation_manager(self):
            elements = torch.empty_strided(shape, strides, **options)
            if storage is not None:
                elements.set_(storage, kept.storage_offset, shape, strides)
        return FakeTensor(self, elements, kept.device)

    return make


def _has_plain_sizes(kept: Any) -> bool:
    """Whether a kept description is of a dense tensor whose sizes are numbers."""
    if kept.layout is not torch.strided or kept.is_conj or kept.is_neg:
        return False
    numbers = *kept.shape, *kept.stride, kept.storage_offset
    return all(type(number) is int for number in numbers)


# Shortcuts for the scheduler's fusion: pairs of nodes that cannot be one kernel, and loops.
#
# A tensor that all layers add to, or a mask that all of them read, makes pairs of all of its
# users, and most of these are layers apart. Torch weighs what each pair shares before it asks what
# lies between.


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
    # By default, torch leaves nodes apart that are far apart and only read the same.
    is_default = V.choices.can_fuse_horizontal is InductorChoices.can_fuse_horizontal
    return is_default and bool(scheduler.are_long_distant_nodes(node1, node2))


def _may_be_inverted(node: Any) -> bool:
    """Whether torch may exchange where a node reads and writes, which stays if it is not fused."""
    if not inductor_config.loop_index_inversion_in_fusion:
        return False
    accesses = node.read_writes
    return len(accesses.reads) <= 1 and len(accesses.writes) <= 1


def _is_between(scheduler: Any, node1: Any, node2: Any) -> bool:
    """Whether another node that reads what the first writes must run before the second."""
    names, renamed = node1.get_operation_names()._dict.keys(), scheduler.mutation_renames
    written = {renamed.get(dep.name, dep.name) for dep in node1.read_writes.writes}
    written.update(node1.get_buffer_names())
    for dep in node2.unmet_dependencies:
        if dep.name in written or renamed.get(dep.name, dep.name) in written:
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


# Shortcuts for what all of torch's compiler is built from: nested structures, sets, switches.


_TREES = "torch.utils._pytree"
_SETS = "torch.utils._ordered_set:OrderedSet"


# Functions that call themselves are no closures here: those would be garbage that only a collection
# finds, and there are a hundred thousand of them in a trace.


def _way_of(value: Any) -> tuple[Any, Any]:
    """The kind of a structure and how torch takes it apart; None instead of that for a leaf."""
    kind: Any = type(value)
    if isinstance(value, tuple) and kind is not tuple and _is_namedtuple(kind):
        kind = _pytree.namedtuple
    return kind, _pytree.SUPPORTED_NODES.get(kind)


@cache
def _is_namedtuple(kind: Any) -> bool:
    return bool(_pytree.is_namedtuple_class(kind))


@in_place_of(_TREES, "tree_flatten", "8961e2f25a32")
def flatten(_original: Any) -> Any:
    """The leaves of a structure, and the structure."""

    def tree_flatten(tree: Any, is_leaf: Any = None) -> tuple[list[Any], Any]:
        leaves: list[Any] = []
        spec = _spec_of(tree, is_leaf, leaves)
        return leaves, spec

    return tree_flatten


def _spec_of(node: Any, is_leaf: Any, leaves: list[Any]) -> Any:
    """Torch's description of a structure, whose leaves are added to a list."""
    kind, way = (None, None) if is_leaf is not None and is_leaf(node) else _way_of(node)
    if way is None:
        leaves.append(node)
        return _pytree._LEAF_SPEC
    children, context = way.flatten_fn(node)
    inner = [_spec_of(child, is_leaf, leaves) for child in children]
    return _pytree.TreeSpec(kind, context, inner)


@in_place_of(_TREES, "tree_iter", "f22b2006bf62")
def iterate(_original: Any) -> Any:
    """The leaves of a structure."""
    return lambda tree, is_leaf=None: iter(leaves_of(tree, is_leaf))


def leaves_of(tree: Any, is_leaf: Any = None) -> list[Any]:
    """The leaves of a structure."""
    leaves: list[Any] = []
    _add_leaves(tree, is_leaf, leaves)
    return leaves


def _add_leaves(node: Any, is_leaf: Any, leaves: list[Any]) -> None:
    way = None if is_leaf is not None and is_leaf(node) else _way_of(node)[1]
    if way is None:
        leaves.append(node)
    else:
        for child in way.flatten_fn(node)[0]:
            _add_leaves(child, is_leaf, leaves)


@in_place_of(_TREES, "tree_map", "0672ad0ef945")
def transform(original: Any) -> Any:
    """The same structure with the results of a function at its leaves."""

    def tree_map(func: Any, tree: Any, *rests: Any, is_leaf: Any = None) -> Any:
        if rests:
            return original(func, tree, *rests, is_leaf=is_leaf)
        return _mapped(func, tree, is_leaf)

    return tree_map


def _mapped(func: Any, node: Any, is_leaf: Any) -> Any:
    way = None if is_leaf is not None and is_leaf(node) else _way_of(node)[1]
    if way is None:
        return func(node)
    children, context = way.flatten_fn(node)
    return way.unflatten_fn([_mapped(func, child, is_leaf) for child in children], context)


@in_place_of(_SETS, "__or__", "3416defbd389")
def unite(original: Any) -> Any:
    """The elements of both sets."""
    kind, make = OrderedSet, OrderedSet._from_dict

    def either(self: Any, other: Any) -> Any:
        if type(self) is kind and type(other) is kind:
            return make(self._dict | other._dict)
        return original(self, other)

    return either


@in_place_of(_SETS, "__and__", "2d85979cfacb")
def intersect(original: Any) -> Any:
    """The elements that are in both sets, in the order of the smaller one."""
    kind, make = OrderedSet, OrderedSet._from_dict

    def both(self: Any, other: Any) -> Any:
        if type(self) is not kind or type(other) is not kind:
            return original(self, other)
        smaller, larger = other._dict, self._dict
        if len(larger) < len(smaller):
            smaller, larger = larger, smaller
        return make({element: None for element in smaller if element in larger})

    return both


@in_place_of("torch.utils._config_module:ConfigModule", "__getattr__", "00f80ea149ec")
def read_switch(original: Any) -> Any:
    """The value of one of torch's switches."""
    unset, plain = _config_module._UNSET_SENTINEL, _config_module._IMMUTABLE_CONFIG_TYPES

    def switch(self: Any, name: str) -> Any:
        entry = self._config.get(name)
        if entry is None or entry.hide or entry.deprecated:
            return original(self, name)
        if entry.alias is not None:
            module, _, alias = entry.alias.rpartition(".")
            known = sys.modules.get(module)
            return original(self, name) if known is None else getattr(known, alias)
        if entry.env_value_force is not unset:
            return entry.env_value_force
        value = entry.user_override.get()
        if value is not unset:
            return value
        if entry.env_value_default is not unset:
            return entry.env_value_default
        if entry.justknob is None and isinstance(entry.default, plain):
            return entry.default
        return original(self, name)

    return switch


# Shortcuts for the passes over a graph: what they look for, and what they do again.


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
    views, known = [node], {node}
    for view in views:  # which grows meanwhile
        new = [n for n in view.users if n not in known and fx_utils.get_node_storage(n) == storage]
        views.extend(new)
        known.update(new)
    return len(known) == storages[storage]


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
        with replacing() as replace:
            replace(torch.fx, GraphModule=_get_graph_module_cls())
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


# Shortcuts for questions about sizes and strides, which are mostly plain numbers.


_SIZES = "torch._inductor.sizevars:SizeVarAllocator"
_LOADED = ("indirect", "tmp")
"""How the names of symbols begin that stand for indices which a kernel reads."""


def _is_number(size: Any) -> bool:
    return type(size) is int or isinstance(size, sympy.Integer)


@in_place_of(_SIZES, "statically_known_equals", "427b22ef099a")
def compare(original: Any) -> Any:
    """Whether two sizes are known to be equal."""

    def are_equal(self: Any, left: Any, right: Any) -> bool:
        if _is_number(left) and _is_number(right):
            return bool(left == right)
        return bool(original(self, left, right))

    return are_equal


@in_place_of("torch._inductor.ir:Layout", "is_stride_ordered", "c6ec34b31460")
def check_order(original: Any) -> Any:
    """Whether strides ascend in an order of the dimensions."""

    def is_stride_ordered(self: Any, order: Any) -> bool:
        if len(self.stride) != len(order) or not all(map(_is_number, (*self.size, *self.stride))):
            return bool(original(self, order))
        wide = [i for i, size in enumerate(self.size) if size != 1]
        ascending = [int(self.stride[i]) for i in sorted(wide, key=lambda i: order[i])]
        return all(
            left == right or (not _is_above(left, right) and _is_above(right, left))
            for left, right in pairwise(ascending)
        )

    return is_stride_ordered


def _is_above(left: int, right: int) -> bool:
    """Torch's order of strides: one of zero is below all others."""
    if right == 0 or left == 0:
        return right == 0
    return left >= right or left % right == 0


@in_place_of("torch._inductor.ir", "is_contiguous_strides_for_shape", "5f971552aa58")
def check_contiguous(original: Any) -> Any:
    """Whether strides are those of a tensor whose elements follow each other."""

    def is_contiguous(strides: Any, sizes: Any) -> bool:
        if not all(map(_is_number, (*strides, *sizes))):
            return bool(original(strides, sizes))
        expected = of_full = 1
        for size, stride in reversed(tuple(zip(sizes, strides, strict=False))):
            if size != 1:
                if stride not in (expected, of_full):
                    return False
                expected, of_full = expected * size, of_full * max(1, size)
        return True

    return is_contiguous


@in_place_of("torch._inductor.dependencies:_RecordLoadStoreInner", "canonicalize", "a6889ea92374")
def simplify(original: Any) -> Any:
    """An index in its simplest form, with the loops that it depends on. Equal layers ask again."""

    def canonicalize(self: Any, index: Any) -> Any:
        known = vars(V.graph.sizevars).setdefault("_canonical_indices", {})
        key = type(index), index, self._should_normalize, *self._var_ranges.items()
        result = known.get(key)
        if result is None:
            result = original(self, index)
            if _is_static(index, self._var_ranges):
                known[key] = result
        return result

    return canonicalize


def _is_static(index: Any, ranges: Any) -> bool:
    """Whether no size is a symbol, of which more may be known later."""
    symbols = getattr(index, "free_symbols", ())
    return all(map(_is_number, ranges.values())) and all(
        symbol in ranges or symbol.name.startswith(_LOADED) for symbol in symbols
    )


@in_place_of(_SIZES, "simplify", "84989b16b1ad")
def expand(original: Any) -> Any:
    """A size in its simplest form. A number has no simpler one."""
    return lambda self, size: size if isinstance(size, sympy.Integer) else original(self, size)


@in_place_of(_SIZES, "_simplify_with_ranges", "b13209b67ef9")
def simplify_in_ranges(original: Any) -> Any:
    """An index in its simplest form, given the loops. Torch writes down what these say of the
    index before it asks whether there is a division or remainder to which it matters."""

    def simplify_with_ranges(self: Any, index: Any, ranges: Any) -> Any:
        joined = sizevars.join_dimensions(self.simplify(index))
        is_divided = joined.has(ModularIndexing) or joined.has(FloorDiv)
        return original(self, index, ranges) if is_divided else joined

    return simplify_with_ranges


@in_place_of(_SIZES, "optimization_hint", "b1716ebc6e80")
def estimate(original: Any) -> Any:
    """The number that a size is, or most likely is."""

    def optimization_hint(self: Any, size: Any, fallback: Any = None) -> Any:
        return int(size) if _is_number(size) else original(self, size, fallback)

    return optimization_hint


@in_place_of(_SIZES, "is_size_one_or_false", "ecd2a4066417")
def check_one(original: Any) -> Any:
    """Whether a size is known to be one."""
    return lambda self, size: bool(size == 1) if _is_number(size) else original(self, size)


@in_place_of("torch._inductor.ir:IRNode", "is_zero_elements", "d8eb2abc7694")
def check_none(original: Any) -> Any:
    """Whether a tensor is known to have no elements."""

    def is_zero_elements(self: Any) -> bool:
        sizes = self.get_size()
        return 0 in sizes if all(map(_is_number, sizes)) else bool(original(self))

    return is_zero_elements


@in_place_of("torch.fx.experimental._size_hinting", "_sympy_subs", "81d8008e9b46")
def substitute(original: Any) -> Any:
    """An expression with others in place of its symbols, which are mostly no names to be made."""

    def substituted(expression: Any, replacements: Any) -> Any:
        if not replacements:
            return sympy.sympify(expression)
        if any(isinstance(value, str) for value in replacements.values()):
            return original(expression, replacements)
        return sympy.sympify(expression).xreplace(replacements)

    return substituted
