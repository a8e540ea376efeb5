"""Fit the workspace that cuDNN allocates for convolutions, on steps measured on our H200.

    python -m lab fit workspaces

Needs only the campaigns `suite` and `suite-half`. Writes src/wavecast/data/models/workspaces.toml.

A decision tree predicts which algorithm a convolution runs. Each leaf names the algorithm with the
least summed error of the workspace over its convolutions. Confusing two algorithms with equal
workspaces therefore costs nothing.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from lab import needs
from lab.measured import campaigns
from lab.places import MODELS
from wavecast import Device, device
from wavecast.footprint import convolution_workspaces
from wavecast.footprint.convolution_workspaces import Convolution, Tree
from wavecast.footprint.workspaces import Constants, on_tensor_cores, scattered_bytes
from wavecast.traces.step import Op, Role, Trace

CARD = MODELS / "workspaces.toml"
GPU = "h200-sxm"

DEEPEST = 4
SMALLEST_LEAF = 30
"""The fewest convolutions of a leaf."""
GAIN = 1.5
"""A question is added only if it lowers the summed error by more than this."""


@dataclass(frozen=True)
class Seen:
    """A convolution and its measured workspace."""

    what: Convolution
    nbytes: int

    @property
    def losses(self) -> dict[str, float]:
        """The error of each algorithm: |log| of predicted over measured memory of the whole op."""
        tensors = (self.what.source, self.what.weight, self.what.output)
        scale = sum(t.nbytes for t in tensors)
        return {
            name: abs(math.log((nbytes + scale) / (self.nbytes + scale)))
            for name, nbytes in self.what.candidates().items()
        }


def traces(left_out: Collection[str] = ()) -> Iterator[tuple[str, Trace]]:
    """The name of the model and the trace of each measured step, without the models left out."""
    for name in ("suite", "suite-half"):
        campaign = campaigns.traces(name)
        for key in campaign:
            model = key.rsplit("-", 2)[0]
            if model not in left_out:
                yield model, campaign[key]


def taken(trace: Trace) -> Iterator[tuple[Op, int]]:
    """Each op of a step and its measured workspace in bytes."""
    workspace_bytes = {
        allocation.born: allocation.nbytes
        for allocation in trace.allocations
        if allocation.role is Role.WORKSPACE and allocation.born is not None
    }
    for position, call in enumerate(trace):
        yield call.op, workspace_bytes.get(position, 0)


def observations(named_traces: Sequence[tuple[str, Trace]]) -> dict[str, dict[Op, int]]:
    """The smallest workspace of each convolution, by model.

    The smallest, because the allocator may give more than was requested.
    """
    least: dict[str, dict[Op, int]] = defaultdict(dict)
    for model, trace in named_traces:
        for op, nbytes in taken(trace):
            if op.base in convolution_workspaces.NAMES:
                least[model][op] = min(nbytes, least[model].get(op, nbytes))
    return dict(least)


def fit(seen: Mapping[Op, int], gpu: Device) -> Constants:
    """The constants that fit these ops best."""
    groups: dict[str, list[Seen]] = defaultdict(list)
    for op, nbytes in seen.items():
        if op.base in convolution_workspaces.NAMES:
            what = Convolution.of(op, on_tensor_cores(op, gpu))
            groups[convolution_workspaces.tree_name(what)].append(
                Seen(what, max(0, nbytes - scattered_bytes(what)))
            )
    assert gpu.compute_capability is not None
    return Constants(
        gpu=gpu.name,
        capability=gpu.compute_capability,
        trees={name: grow(group) for name, group in sorted(groups.items())},
    )


@dataclass
class _Node:
    feature: int
    threshold: float
    lower: int
    higher: int
    answer: str


def grow(group: Sequence[Seen]) -> Tree:
    """A decision tree. Each question is the one that lowers the error most (at least by `GAIN`)."""
    names = sorted({name for seen in group for name in seen.losses})
    worst = max((max(seen.losses.values()) for seen in group), default=0.0)
    losses = np.array([[seen.losses.get(n, worst) for n in names] for seen in group])
    features = np.array([seen.what.features for seen in group])
    nodes: list[_Node] = []

    def add(rows: NDArray[np.int64], depth: int) -> int:
        place = len(nodes)
        totals = losses[rows].sum(axis=0)
        nodes.append(_Node(-1, 0.0, -1, -1, names[int(totals.argmin())]))
        question = _best_question(features[rows], losses[rows]) if depth < DEEPEST else None
        if question is not None and totals.min() - question[2] > GAIN:
            feature, threshold, _ = question
            larger = features[rows, feature] > threshold
            nodes[place].feature, nodes[place].threshold = feature, threshold
            nodes[place].lower = add(rows[~larger], depth + 1)
            nodes[place].higher = add(rows[larger], depth + 1)
        return place

    add(np.arange(len(group)), 0)
    return Tree(
        feature=tuple(node.feature for node in nodes),
        threshold=tuple(node.threshold for node in nodes),
        lower=tuple(node.lower for node in nodes),
        higher=tuple(node.higher for node in nodes),
        answer=tuple(node.answer for node in nodes),
    )


def _best_question(
    features: NDArray[np.float64], losses: NDArray[np.float64]
) -> tuple[int, float, float] | None:
    """The feature and the threshold with the least summed error of both sides, and that error."""
    best: tuple[int, float, float] | None = None
    total = losses.sum(axis=0)
    for feature in range(features.shape[1]):
        order = np.argsort(features[:, feature], kind="stable")
        values = features[order, feature]
        below = np.cumsum(losses[order], axis=0)
        lost = below.min(axis=1) + (total - below).min(axis=1)
        cuts = np.flatnonzero(values[1:] > values[:-1])
        cuts = cuts[(cuts + 1 >= SMALLEST_LEAF) & (len(values) - cuts - 1 >= SMALLEST_LEAF)]
        if not len(cuts):
            continue
        cut = int(cuts[lost[cuts].argmin()])
        if best is None or lost[cut] < best[2]:
            threshold = round(float(values[cut] + values[cut + 1]) / 2, 3)
            best = feature, threshold, float(lost[cut])
    return best


def card(constants: Constants, steps: int, seen: int) -> str:
    """The content of the file."""
    lines = [
        "# Decision trees that predict which algorithm, and so which workspace, cuDNN chooses for",
        "# a convolution. Written by lab/fit/workspaces.py.",
        f'fitted = "{date.today().isoformat()}"',
        f'data = "{steps} steps of the suite measured on our H200, {seen} different convolutions"',
        f'gpu = "{constants.gpu}"',
        f"capability = {list(constants.capability)}",
        f"features = {json.dumps(list(convolution_workspaces.FEATURES))}",
    ]
    for name, tree in constants.trees.items():
        lines += ["", f'[trees."{name}"]']
        for key in ("feature", "threshold", "lower", "higher", "answer"):
            lines.append(f"{key} = {json.dumps(list(getattr(tree, key)))}")
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] = ()) -> None:
    """Fit on everything, and write the card."""
    needs.parser(__doc__).parse_args(given)
    named_traces = list(traces())
    seen = {op: n for ops in observations(named_traces).values() for op, n in ops.items()}
    CARD.write_text(card(fit(seen, device(GPU)), len(named_traces), len(seen)), encoding="utf-8")
