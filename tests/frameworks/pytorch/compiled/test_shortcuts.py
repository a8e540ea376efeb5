"""Shortcuts through torch's compiler: they change no trace, and no answer of what they replace."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree
from torch.utils._ordered_set import OrderedSet

from wavecast.frameworks.pytorch.compiled import shortcuts
from wavecast.frameworks.pytorch.compiled.shortcuts import (
    StandIn,
    allowed,
    digest_of,
    taken,
)
from wavecast.frameworks.pytorch.compiled.tracing import capture
from wavecast.hardware.devices import device
from wavecast.traces.step import Trace

_TRIED = torch.__version__.startswith("2.13.")
written_for_2_13 = pytest.mark.skipif(not _TRIED, reason="shortcuts were written for torch 2.13")


EVERY = tuple(shortcuts.SHORTCUTS)


class Block(nn.Module):
    """A layer of a transformer, with dropout; a graph ends in the middle if asked."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(64), nn.Linear(64, 192)
        self.drop, self.out, self.breaks = nn.Dropout(0.1), nn.Linear(64, 64), breaks

    def forward(self, x: Any) -> Any:
        """Attention over the sequence."""
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        heads = [t.unflatten(-1, (4, 16)).transpose(1, 2) for t in (q, k, v)]
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        if self.breaks:
            torch._dynamo.graph_break()
        return x + self.drop(self.out(y.transpose(1, 2).flatten(2)))


def transformer(breaks: bool = False) -> Any:
    """A step of two equal layers under autocast."""
    model = nn.Sequential(nn.Embedding(101, 64), Block(breaks), Block(breaks)).cuda()
    head = nn.Linear(64, 101).cuda()
    tokens = torch.randint(0, 101, (4, 128), device="cuda")
    compiled = torch.compile(lambda x: head(model(x)).flatten(0, 1))

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(compiled(tokens), tokens.flatten())
        loss.backward()

    return step


def images() -> Any:
    """A step of convolutions and batch norm in channels-last."""
    layers = (
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 8, 3),
    )
    model = nn.Sequential(*layers).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    compiled = torch.compile(lambda x: model(x).float().var())
    return lambda: compiled(x).backward()


def traced(make_step: Callable[[], Any], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))  # else the second trace lowers nothing
    return capture(make_step, gpu=device("h100-sxm-80gb"))


@pytest.mark.parametrize(
    "make_step",
    [transformer, lambda: transformer(breaks=True), images],
    ids=["equal", "broken", "conv"],
)
def test_traces_are_equal_without_shortcuts(
    make_step: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = traced(make_step, tmp_path / "quick", monkeypatch)
    monkeypatch.setattr("wavecast.frameworks.pytorch.compiled.shortcuts.SHORTCUTS", [])
    assert traced(make_step, tmp_path / "slow", monkeypatch) == quick
    assert any(call.op.name.startswith("inductor.") for call in quick)


@written_for_2_13
def test_torch_refuses_each_pair_that_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in, are_apart = shortcuts.screen_pairs.stand_in(), shortcuts._are_apart
    assert stand_in is not None
    answers = []

    def checked(scheduler: Any, node1: Any, node2: Any) -> bool:
        if not are_apart(scheduler, node1, node2):
            return False
        for reorders in (False, True):
            answers.append(stand_in.original(scheduler, node1, node2, reorders))
        return True

    monkeypatch.setattr(shortcuts, "_are_apart", checked)
    traced(transformer, tmp_path, monkeypatch)
    assert len(answers) > 20
    assert not any(answers)


@written_for_2_13
def test_all_shortcuts_are_for_the_torch_that_was_tried() -> None:
    assert len(allowed(EVERY)) == len(EVERY)


def test_other_functions_are_left_alone() -> None:
    shortcut = EVERY[0]
    absent = replace(shortcut, name="no_such_function"), replace(shortcut, owner="torch.no_such")
    assert allowed((replace(shortcut, digest="another"), *absent)) == ()
    assert replace(shortcut, make=lambda _original: torch.no_such).stand_in() is None
    helper = "torch.utils._pytree:tree_map"
    assert replace(shortcut, relies=((helper, "another"),)).stand_in() is None
    known = (helper, digest_of(_pytree.tree_map))
    assert (replace(shortcut, relies=(known,)).stand_in() is None) is not _TRIED


def test_functions_are_put_back_also_where_they_were_imported() -> None:
    from torch._inductor import fx_utils

    before = _pytree.tree_map
    with taken(EVERY):
        assert fx_utils.tree_map is _pytree.tree_map
        assert (_pytree.tree_map is before) is not _TRIED
    assert fx_utils.tree_map is _pytree.tree_map is before


def named(name: str) -> StandIn:
    """The shortcut for a function of torch's."""
    for shortcut in allowed(EVERY):
        if shortcut.name == name:
            return shortcut
    return pytest.skip("this torch has another function")


Pair = collections.namedtuple("Pair", "left right")


def structure(draw: random.Random, depth: int = 3) -> Any:
    """A nested structure with numbers at its leaves."""
    if not depth or draw.random() < 0.2:
        return draw.choice((draw.randrange(9), None, torch.Size((1, 2))))
    parts = [structure(draw, depth - 1) for _ in range(draw.randrange(4))]
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: parts,
        lambda: tuple(parts),
        lambda: {f"{number}": part for number, part in enumerate(parts)},
        lambda: Pair(parts, 3),
        lambda: collections.OrderedDict(enumerate(parts)),
    )
    return draw.choice(kinds)()


@pytest.mark.parametrize("is_leaf", [None, lambda value: isinstance(value, dict)])
def test_structures_are_taken_apart_as_torch_does(is_leaf: Any) -> None:
    flatten, iterate, transform = map(named, ("tree_flatten", "tree_iter", "tree_map"))
    draw = random.Random(0)
    for tree in (structure(draw) for _ in range(300)):
        assert flatten.function(tree, is_leaf) == flatten.original(tree, is_leaf)
        assert list(iterate.function(tree, is_leaf)) == list(iterate.original(tree, is_leaf))
        renamed = transform.function(str, tree, is_leaf=is_leaf)
        assert repr(renamed) == repr(transform.original(str, tree, is_leaf=is_leaf))
        assert transform.function(Pair, [1, 2], [3, 4]) == [(1, 3), (2, 4)]


def test_sets_are_in_the_same_order() -> None:
    draw = random.Random(0)
    for _ in range(300):
        sets = [OrderedSet(draw.sample(range(9), draw.randrange(9))) for _ in range(2)]
        for name in ("__or__", "__and__"):
            operator = named(name)
            assert list(operator.function(*sets)) == list(operator.original(*sets))


def test_strides_are_ordered_as_torch_orders_them() -> None:
    from torch._inductor import ir
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V

    ordered, equal = named("is_stride_ordered"), named("statically_known_equals")
    draw, sizes, answers = random.Random(0), SizeVarAllocator(), set()
    with V.set_graph_handler(SimpleNamespace(sizevars=sizes)):
        for _ in range(300):
            shape, strides = ([draw.choice((1, 2, 3, 0, 8)) for _ in range(3)] for _ in range(2))
            layout = ir.FixedLayout(torch.device("cpu"), torch.float32, shape, strides)
            order = draw.sample(range(3), 3)
            answers.add(ordered.original(layout, order))
            assert ordered.function(layout, order) == ordered.original(layout, order)
            assert equal.function(sizes, *shape[:2]) == equal.original(sizes, *shape[:2])
    assert answers == {True, False}


def test_tensors_are_contiguous_where_torch_says_so() -> None:
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V

    contiguous, draw, answers = named("is_contiguous_strides_for_shape"), random.Random(0), set()
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        for _ in range(1000):
            strides, shape = ([draw.choice((1, 2, 4, 0)) for _ in range(3)] for _ in range(2))
            answers.add(contiguous.original(strides, shape))
            assert contiguous.function(strides, shape) == contiguous.original(strides, shape)
    assert answers == {True, False}


def test_indices_are_simplified_as_torch_does() -> None:
    import sympy
    from torch._inductor.sizevars import SizeVarAllocator
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    simplify, sizes = named("_simplify_with_ranges"), SizeVarAllocator()
    x, y = sympy.symbols("x y", integer=True, nonnegative=True)
    ranges = {x: sympy.Integer(4), y: sympy.Integer(8)}
    indices = (
        *(8 * x + y, sympy.Integer(3), FloorDiv(y, 8) + x, ModularIndexing(8 * x + y, 1, 8)),
        ModularIndexing(y, 1, 4) + 4 * ModularIndexing(y, 4, 2),  # which are joined
    )
    for index in indices:
        assert simplify.function(sizes, index, ranges) == simplify.original(sizes, index, ranges)


def test_fusions_lead_in_circles_where_torch_says_so() -> None:
    from torch._inductor.scheduler import FusedSchedulerNode

    class Node(FusedSchedulerNode):
        def __init__(self, names: set[str], ancestors: set[str]) -> None:
            self._names, self.ancestors = OrderedSet(sorted(names)), OrderedSet(sorted(ancestors))

        def get_name(self) -> str:
            return "_".join(self._names)

        def get_operation_names(self) -> OrderedSet[str]:
            return self._names

    cycle, draw, answers = named("will_fusion_create_cycle"), random.Random(0), set()
    for _ in range(300):
        # Each op reads earlier ones, and some of them are fused already.
        reads: dict[str, set[str]] = {}
        for number in range(9):
            direct = draw.sample(sorted(reads), draw.randrange(min(3, number + 1)))
            reads[f"op{number}"] = set(direct).union(*(reads[name] for name in direct))
        groups = [[name] for name in reads]
        for _ in range(3):
            left = groups.pop(draw.randrange(len(groups)))
            groups[draw.randrange(len(groups))] += left
        nodes = [
            Node(set(group), set[str]().union(*(reads[name] for name in group)) - set(group))
            for group in groups
        ]
        scheduler = SimpleNamespace(
            name_to_fused_node={name: node for node in nodes for name in node.get_operation_names()}
        )
        pair = draw.sample(nodes, 2)
        answers.add(cycle.original(scheduler, *pair))
        assert cycle.function(scheduler, *pair) == cycle.original(scheduler, *pair)
    assert answers == {True, False}


def test_sizes_are_what_torch_says() -> None:
    import sympy
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V

    simplify, hint = named("simplify"), named("optimization_hint")
    is_one, none, put = map(named, ("is_size_one_or_false", "is_zero_elements", "_sympy_subs"))
    sizes, x = SizeVarAllocator(), sympy.Symbol("x", integer=True)
    with V.set_graph_handler(SimpleNamespace(sizevars=sizes)):
        for number in (0, 1, 7, sympy.Integer(0), sympy.Integer(1), sympy.Integer(7)):
            assert hint.function(sizes, number) == hint.original(sizes, number)
            assert bool(is_one.function(sizes, number)) == bool(is_one.original(sizes, number))
            tensor = SimpleNamespace(get_size=lambda n=number: [2, n])
            tensor.get_numel = lambda n=number: sympy.Integer(2) * n
            assert none.function(tensor) == none.original(tensor)
        for term in (sympy.Integer(3), x, 2 * (x + 1)):
            assert simplify.function(sizes, term) == simplify.original(sizes, term)
            for given in ({}, {x: sympy.Integer(4)}, {x: "y"}):
                assert put.function(term, given) == put.original(term, given)


@written_for_2_13
def test_switches_have_the_same_values() -> None:
    from torch._inductor import config

    read = named("__getattr__")
    with config.patch(max_autotune=True):
        for name in config._config:
            try:
                before = read.original(config, name)
            except AttributeError:
                with pytest.raises(AttributeError):
                    read.function(config, name)
            else:
                assert read.function(config, name) == before
    assert config.max_autotune is False


# What torch keeps of the results of ops, found and made again without detours.


@written_for_2_13
def test_keys_are_those_of_torch() -> None:
    describe = named("_prep_args_for_hash")
    with FakeTensorMode() as mode:
        image = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
        weight = torch.empty(6, 7, dtype=torch.bfloat16, requires_grad=True)
        tensors = [image, weight, weight.t(), weight[1:, 2:], image.sum()]
        tensors.append(torch.empty(3, dtype=torch.complex64).conj())
    others = [1, 1.0, True, None, "sum", torch.float32, torch.device("cuda"), torch.strided]
    arguments: tuple[Any, ...] = (
        tensors,
        [1, [2, (3,)]],
        torch.Size([4]),
        {"a": tensors[0], "b": others},
        range(2),
    )
    several: list[Any] = [arguments, {"x": others, "y": tensors}, (), []]
    for given in several:
        results: tuple[list[Any], list[Any]] = ([], [])
        for result, function in zip(results, (describe.original, describe.function), strict=True):
            function(mode, result, given, SimpleNamespace(), [])
        assert results[0] == results[1]
        assert [type(part) for part in results[0]] == [type(part) for part in results[1]]


@written_for_2_13
def test_what_torch_refuses_is_refused() -> None:
    from torch._subclasses.fake_tensor import _BypassDispatchCache

    describe = named("_prep_args_for_hash")
    with FakeTensorMode():
        foreign = torch.empty(2)
    for argument in (foreign, torch.empty(2), lambda: None):
        with pytest.raises(_BypassDispatchCache):
            describe.function(FakeTensorMode(), [], (argument,), SimpleNamespace(), [])


@written_for_2_13
def test_results_are_made_again_as_torch_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[tuple[Any, ...]]:
        with FakeTensorMode() as mode:
            x = torch.empty(4, 6)
            runs = []
            for _ in range(2):  # the second time from what was kept
                view = x.t()[1:]
                results = [view, x @ x.t(), x.add_(1), *x.split(2), x.to(torch.float16)]
                shared = [r.untyped_storage()._cdata == x.untyped_storage()._cdata for r in results]
                shapes = [(r.shape, r.stride(), r.storage_offset(), r.dtype) for r in results]
                runs.append((shapes, shared, [r.device for r in results]))
            assert mode is not None
        return runs

    FakeTensorMode.cache_clear()
    expected = run()
    FakeTensorMode.cache_clear()
    with taken((shortcuts.describe, shortcuts.make_again)):
        assert run() == expected
    assert FakeTensorMode.cache_info().hits > 0


# Loops of kernels that were tried before.


@written_for_2_13
def test_loops_are_found_again_unless_torch_has_changed_a_body() -> None:
    def body(**changes: Any) -> Any:
        state = {"sizes": ((8,), ()), "indexing_exprs": {"index0": 1}, "root_block": None}
        return SimpleNamespace(**state, **changes)

    bodies: list[Any] = []

    def original(_self: Any, sizes: Any) -> Any:
        bodies.append(body(of=sizes))
        return bodies[-1]

    reindexed, own = shortcuts.remember_loops.make(original), body()
    first = reindexed(own, [4, 2])
    assert reindexed(own, [4, 2]) is first
    assert reindexed(own, [2, 4]) is not first
    first.indexing_exprs["index0"] = 2
    second = reindexed(own, [4, 2])
    assert second is not first
    own.indexing_exprs["index0"] = 3
    assert reindexed(own, [4, 2]) is not second
    assert len(bodies) == 4
