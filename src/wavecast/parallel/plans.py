"""Which products of a model are divided among tensor ranks, and how.

A plan names modules and styles, in the words of DTensor and of Hugging Face's `base_model_tp_plan`.
Without a plan, a rule finds the pairs that Megatron divides (Shoeybi et al. 2019, section 3): in
each block, products that read the hidden state are divided by columns, and products that return to
it by rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from wavecast.errors import InvalidInput
from wavecast.parallel.mixtures import routers
from wavecast.parallel.products import Layer, layers_of
from wavecast.traces.blocks import block_finder
from wavecast.traces.step import Phase, Trace

Style = Literal["columns", "gathered columns", "rows"]

_STYLES: dict[str, Style] = {
    "colwise": "columns",
    "packed_colwise": "columns",
    "local_colwise": "columns",
    "colwise_rep": "gathered columns",
    "colwise_gather_output": "gathered columns",
    "rowwise": "rows",
    "packed_rowwise": "rows",
    "local_rowwise": "rows",
    "rowwise_rep": "rows",
    "rowwise_split_input": "rows",
    "embedding_rowwise": "rows",
}
_NOT_DIVIDED = (
    *("sequence_parallel", "replicate", "replicated", "replicated_with_grad_allreduce"),
    *("embedding_colwise", "mla_kv_a_proj", "all_reduce", "moe_identity_expert", "ep_router"),
)
_OF_EXPERTS = ("moe_tp_experts", "grouped_gemm", "ep_dispatch_experts")
"""Experts that are grouped products are always divided: see `mixtures`."""
_MIXES = ("attention", "softmax")
_ACTIVATIONS = ("gelu", "silu", "relu", "tanh", "sigmoid", "hardswish", "leaky_relu")


@dataclass(frozen=True)
class Group:
    """Products that read the same hidden state, and the products that return to it."""

    columns: tuple[Layer, ...]
    rows: tuple[Layer, ...]

    @property
    def reads_one(self) -> bool:
        """Whether all its first products read the same hidden state, by its width."""
        return len({layer.wide_in for layer in self.columns}) == 1


@dataclass(frozen=True)
class Plan:
    """How the layers of a step are divided."""

    styles: dict[int, Style]
    """The style of a layer, by the position of its product in the forward pass."""
    groups: tuple[Group, ...]
    lookups: frozenset[str]
    """The modules of embeddings that are divided by vocabulary."""
    joint: bool
    """Whether the layers of a group reduce the gradient of their input together."""
    notes: tuple[str, ...]
    whole: frozenset[int] = frozenset()
    """The positions of small products that each rank computes whole, beside divided ones."""


def plan_of(trace: Trace, given: Mapping[str, str] | None, ranks: int) -> Plan:
    """The plan for a step: the given one, or one that the rule finds.

    Raises:
        InvalidInput: a given plan fits no module, or the rule finds no pairs.
    """
    layers = layers_of(trace)
    plan = _given(trace, layers, given) if given is not None else _ruled(trace, layers, ranks)
    _check_widths(plan, layers, ranks)
    return plan


def _given(trace: Trace, layers: Sequence[Layer], given: Mapping[str, str]) -> Plan:
    known = (*_STYLES, *_NOT_DIVIDED, *_OF_EXPERTS)
    unknown = sorted({word for word in given.values() if word not in known})
    if unknown:
        raise InvalidInput(
            f"the tensor plan has the style {unknown[0]!r}; known styles: {', '.join(known)}"
        )
    tables = _tables(trace)
    styles: dict[int, Style] = {}
    lookups: set[str] = set()
    unused = []
    for pattern, word in given.items():
        style = _STYLES.get(word)
        if style is None:
            continue
        fits = _matcher(pattern)
        matched = [layer for layer in layers if fits(layer.module)]
        of_tables = {module for module in tables if fits(module)}
        styles.update({layer.position: style for layer in matched})
        lookups.update(of_tables if style == "rows" else ())
        if not matched and not of_tables:
            unused.append(pattern)
    if not styles and not lookups:
        some = ", ".join(sorted({layer.module for layer in layers})[:5])
        raise InvalidInput(
            f"the tensor plan ({', '.join(given)}) fits no product or embedding of the trace; its "
            f"modules are such as {some}"
        )
    notes = [f"tensor parallel as in the given plan: {len(styles)} products are divided"]
    if unused:
        notes.append(f"the tensor plan's {', '.join(unused)} fit no product of the trace")
    groups = _groups([layer for layer in layers if layer.position in styles], styles)
    return Plan(styles, groups, frozenset(lookups), False, tuple(notes))


def _matcher(pattern: str) -> _Fits:
    parts = [re.escape(part) for part in pattern.split("*")]
    return _Fits(re.compile(r"(.*\.)?" + r"[^.]+".join(parts)))


@dataclass(frozen=True)
class _Fits:
    """Tells whether a module's path ends as a pattern says."""

    expression: re.Pattern[str]

    def __call__(self, module: str) -> bool:
        return self.expression.fullmatch(module) is not None


def _groups(layers: Sequence[Layer], styles: Mapping[int, Style]) -> tuple[Group, ...]:
    """Layers divided by columns with the layers by rows that follow them."""
    groups: list[Group] = []
    columns: list[Layer] = []
    for layer in layers:
        if styles[layer.position] == "rows":
            groups.append(Group(tuple(columns), (layer,)))
            columns = []
        else:
            columns.append(layer)
    if columns:
        groups.append(Group(tuple(columns), ()))
    return tuple(groups)


def _ruled(trace: Trace, layers: Sequence[Layer], ranks: int) -> Plan:
    """The pairs of a plain transformer."""
    block_of = block_finder(trace)
    styles: dict[int, Style] = {}
    groups: list[Group] = []
    blocks: dict[str, list[Layer]] = {}
    routed = routers(trace)
    for layer in layers:
        is_router = not routed.isdisjoint(
            (module, layer.wide_out) for module in (layer.module, _parent(layer))
        )
        if (block := block_of(layer.module)) and not is_router:
            blocks.setdefault(block, []).append(layer)
    whole: set[int] = set()
    for members in blocks.values():
        adapters = _adapters(members)
        narrow = {layer.position for pair in adapters.values() for layer in pair}
        for group in _pairs(trace, [m for m in members if m.position not in narrow]):
            groups.append(group)
            styles.update({layer.position: "columns" for layer in group.columns})
            styles.update({layer.position: "rows" for layer in group.rows})
        for position, (first, second) in adapters.items():
            if styles.get(position) == "columns":
                styles[second.position] = "columns"
            whole |= {first.position, second.position} - styles.keys()
    if not groups:
        raise InvalidInput(
            "tensor parallelism found no pairs of products in repeated blocks (one that widens or "
            "projects the hidden state, one that returns to it); give tensor_plan, such as "
            '{"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
        )
    head = _head(trace, layers, set(styles), groups)
    lookups: frozenset[str] = frozenset()
    notes = [_note(groups)]
    if head is not None:
        styles[head.position] = "columns"
        groups.append(Group((head,), ()))
        lookups = frozenset(
            module for module, rows in _tables(trace).items() if rows == head.wide_out
        )
        notes.append(
            f"assumed that the output layer{' and the embedding' if lookups else ''} of "
            f"{head.wide_out:,} words is divided by vocabulary, with the loss computed on the parts"
        )
    return Plan(styles, tuple(groups), lookups, True, tuple(notes), frozenset(whole))


def _pairs(trace: Trace, members: Sequence[Layer]) -> list[Group]:
    """The groups of one block."""
    groups: list[Group] = []
    columns: list[Layer] = []
    for layer in members:
        if columns and _returns(trace, columns, layer, members):
            groups.append(Group(_expanding(columns), (layer,)))
            columns = []
        else:
            columns.append(layer)
    return groups


def _adapters(members: Sequence[Layer]) -> dict[int, tuple[Layer, Layer]]:
    """The two narrow products beside a layer, from its inputs to its outputs (LoRA), by layer."""
    adapters: dict[int, tuple[Layer, Layer]] = {}
    for layer, first, second in zip(members, members[1:], members[2:], strict=False):
        beside = first.wide_in == layer.wide_in and second.wide_out == layer.wide_out
        rank = first.wide_out
        if beside and rank == second.wide_in and 2 * rank < min(layer.wide_in, layer.wide_out):
            adapters[layer.position] = first, second
    return adapters


def _expanding(columns: Sequence[Layer]) -> tuple[Layer, ...]:
    """Without the layers that compress the hidden state for others, as in DeepSeek's attention."""
    width = columns[0].wide_in
    if all(layer.wide_in == width for layer in columns):
        return tuple(columns)
    return tuple(
        layer for layer in columns if layer.wide_in != width or layer.wide_out >= layer.wide_in
    )


def _returns(
    trace: Trace, columns: Sequence[Layer], layer: Layer, members: Sequence[Layer]
) -> bool:
    """Whether a product leads back to the hidden width after attention or an activation."""
    if layer.wide_out != columns[0].wide_in:
        return False
    if layer.wide_in != columns[0].wide_in:
        return True
    between = trace.calls[columns[0].position : layer.position]
    if any(_has(call.op.base, _MIXES) for call in between):
        return True
    # As wide inside as outside. Where values are gated, two products read the hidden state.
    beside = [other for other in members if _parent(other) == _parent(layer)]
    return layer is beside[-1] and any(_has(call.op.base, _ACTIVATIONS) for call in between)


def _parent(layer: Layer) -> str:
    return layer.module.rpartition(".")[0]


def _has(name: str, marks: Sequence[str]) -> bool:
    return any(mark in name for mark in marks)


def _head(
    trace: Trace, layers: Sequence[Layer], taken: set[int], groups: Sequence[Group]
) -> Layer | None:
    """The layer that gives the logits of a vocabulary: one that follows the blocks."""
    last = max(layer.position for group in groups for layer in (*group.columns, *group.rows))
    width = groups[-1].columns[0].wide_in
    tables = set(_tables(trace).values())
    for layer in reversed(layers):
        after = layer.position > last and layer.position not in taken
        if after and layer.wide_in == width and layer.wide_out in tables:
            return layer
    return None


def _tables(trace: Trace) -> dict[str, int]:
    """The modules that look up rows of a table, with the number of rows."""
    return {
        call.module: call.op.inputs[0].shape[0]
        for call in trace
        if call.phase is Phase.FORWARD and call.op.base == "aten.embedding"
    }


def _note(groups: Sequence[Group]) -> str:
    first = groups[0]
    names = [layer.module.rsplit(".", 1)[-1] for layer in (*first.columns, *first.rows)]
    return (
        f"assumed Megatron's tensor parallelism: {len(groups)} groups of products found by their "
        f"widths, the first divides {', '.join(names[: len(first.columns)])} by columns and "
        f"{names[-1]} by rows"
    )


def _check_widths(plan: Plan, layers: Sequence[Layer], ranks: int) -> None:
    heads = {
        group.columns[-1].position for group in plan.groups if group.columns and not group.rows
    }
    for layer in layers:
        style = plan.styles.get(layer.position)
        if style is None or layer.position in heads:  # a vocabulary may be divided unevenly
            continue
        width = layer.wide_in if style == "rows" else layer.wide_out
        if width % ranks:
            raise InvalidInput(
                f"tensor={ranks} does not divide the {width} "
                f"{'inputs' if style == 'rows' else 'outputs'} of {layer.module}; possible sizes "
                f"are {fitting(width)}"
            )


def fitting(count: int) -> str:
    """The numbers of ranks that divide a count evenly, as text."""
    return ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
