"""Fit the workspace that cuDNN takes for convolutions, on steps measured on our H200.

    python -m lab.fit.workspaces

Needs measurements/h200/suite and suite-half alone. Writes src/wavecast/data/models/workspaces.toml.

A decision tree says which algorithm a convolution runs. Each leaf names the algorithm with the
least error in sum over its convolutions, so that confusing two algorithms with equal workspaces
costs nothing.
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

from lab.measured import campaigns
from lab.places import MODELS
from wavecast import Device, device
from wavecast.footprint.workspaces import convolution
from wavecast.footprint.workspaces.convolution import Convolution, Tree
from wavecast.footprint.workspaces.estimate import Constants, on_tensor_cores, scattered_bytes
from wavecast.traces.step import Op, Role, Trace

CARD = MODELS / "workspaces.toml"
GPU = "h200-sxm"

DEEPEST = 4
SMALLEST_LEAF = 30
GAIN = 1.5
"""The least summed error that a question must save to be asked."""


@dataclass(frozen=True)
class Seen:
    """A convolution and its measured workspace."""

    what: Convolution
    nbytes: int

    @property
    def losses(self) -> dict[str, float]:
        """The error of each algorithm: the logarithm of a ratio, of all memory of the op."""
        tensors = (self.what.source, self.what.weight, self.what.output)
        scale = sum(t.nbytes for t in tensors)
        return {
            name: abs(math.log((nbytes + scale) / (self.nbytes + scale)))
            for name, nbytes in self.what.candidates().items()
        }


def traces(left_out: Collection[str] = ()) -> Iterator[tuple[str, Trace]]:
    """The measured steps, by the model's name, but for some models."""
    for name in ("suite", "suite-half"):
        campaign = campaigns.traces(name)
        for key in campaign:
            model = key.rsplit("-", 2)[0]
            if model not in left_out:
                yield model, campaign[key]


def taken(trace: Trace) -> Iterator[tuple[Op, int]]:
    """Each op and its measured workspace in bytes."""
    inside = {
        each.born: each.nbytes
        for each in trace.allocations
        if each.role is Role.WORKSPACE and each.born is not None
    }
    for position, call in enumerate(trace):
        yield call.op, inside.get(position, 0)


def observations(found: Sequence[tuple[str, Trace]]) -> dict[str, dict[Op, int]]:
    """The least workspace of each op, by model; the allocator may give more than was asked for."""
    least: dict[str, dict[Op, int]] = defaultdict(dict)
    for model, trace in found:
        for op, nbytes in taken(trace):
            if op.base in convolution.NAMES:
                least[model][op] = min(nbytes, least[model].get(op, nbytes))
    return dict(least)


def fit(seen: Mapping[Op, int], gpu: Device) -> Constants:
    """The constants that fit these ops best."""
    groups: dict[str, list[Seen]] = defaultdict(list)
    for op, nbytes in seen.items():
        if op.base in convolution.NAMES:
            what = Convolution.of(op, on_tensor_cores(op, gpu))
            groups[convolution.tree_name(what)].append(
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
    """A decision tree: each question saves the most error, until none saves enough."""
    names = sorted({name for each in group for name in each.losses})
    worst = max((max(each.losses.values()) for each in group), default=0.0)
    losses = np.array([[each.losses.get(n, worst) for n in names] for each in group])
    features = np.array([each.what.features for each in group])
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
    """The feature and threshold with the least summed error of both sides, and that error."""
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
        f"features = {json.dumps(list(convolution.FEATURES))}",
    ]
    for name, tree in constants.trees.items():
        lines += ["", f'[trees."{name}"]']
        for key in ("feature", "threshold", "lower", "higher", "answer"):
            lines.append(f"{key} = {json.dumps(list(getattr(tree, key)))}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit on everything, and write the card."""
    found = list(traces())
    seen = {op: n for ops in observations(found).values() for op, n in ops.items()}
    CARD.write_text(card(fit(seen, device(GPU)), len(found), len(seen)), encoding="utf-8")


if __name__ == "__main__":
    main()
