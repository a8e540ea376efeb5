"""One op model: physics with fitted constants, times learned factors within bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.predictors.learned.columns import Columns
from wavecast.predictors.learned.convolutions import (
    CONVOLUTION_PARAMETERS,
    DEPTHWISE_PARAMETERS,
    TUNED_DEPTHWISE_PARAMETERS,
    convolution_limits,
    depthwise_limits,
    tuned_depthwise_s,
    width_of_groups,
)
from wavecast.predictors.learned.fusions import (
    ATTENTION_PARAMETERS,
    FUSED_PARAMETERS,
    RECURRENT_PARAMETERS,
    attention_s,
    fused_s,
    recurrent_s,
)
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.streams import (
    CONCATENATION_PARAMETERS,
    STREAM_PARAMETERS,
    concatenation_limits,
    stream_limits,
)
from wavecast.predictors.learned.tiles import (
    GROUPED_PARAMETERS,
    PRODUCT_PARAMETERS,
    Bounds,
    Theta,
    TimeLimits,
    grouped_s,
    product_s,
)

# Boosted oblivious trees: all nodes of a level ask the same question.
#
# A tree of depth d is d questions and 2^d answers (Prokhorenkova et al., "CatBoost", NeurIPS
# 2018), so that a whole forest is evaluated with a few array operations. `lab/fit/boosting.py`
# grows them.


FOREST = ("feature", "threshold", "answer", "low", "high", "sorts", "worth")
"""The arrays of a forest in the file of the shipped fit. There, `families` are called "sorts", and
`trust` is called "worth"."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees whose answers add up."""

    feature: NDArray[np.int64]
    """The feature that each level of each tree compares: (trees, depth)."""
    threshold: Floats
    """A level's bit is set where the feature is larger than this: (trees, depth)."""
    answer: Floats
    """The answer for each combination of bits: (trees, 2^depth)."""
    low: Floats
    """The smallest value of each feature in the fit."""
    high: Floats
    """The largest value of each feature in the fit."""
    families: Floats = field(default_factory=lambda: np.zeros((0, 1)))
    """The filter families in the fit, one in each row; no rows where families do not matter."""
    trust: float = 1.0
    """The share of the answer that counts for other families; found by leaving families out."""

    def trust_in(self, families: Floats) -> Floats:
        """The share of the answer that counts for each row: 1 if its family was in the fit."""
        if not len(self.families):
            return np.ones(len(families))
        in_fit = (families[:, None, :] == self.families[None, :, :]).all(axis=2).any(axis=1)
        shares: Floats = np.where(in_fit, 1.0, self.trust)
        return shares

    def __call__(self, features: Floats) -> Floats:
        """The sum of all trees' answers for each row.

        Outside of a feature's range in the fit, trees answer as at its edge, halved for each unit
        of distance (most features are logarithms to base 2): the farther away, the less of what
        was measured applies. Features that came after the fit are the last; they are not looked at.
        """
        if not len(self.feature) or not len(features):
            return np.zeros(len(features))
        features = features[:, : len(self.low)]
        columns = np.ascontiguousarray(features.T)
        leaf = np.zeros((len(self.feature), len(features)), np.uint16)
        for level, feature in enumerate(self.feature.T):
            larger = columns[feature] > self.threshold[:, level, None]
            leaf |= larger.astype(np.uint16) << level
        answers = np.take_along_axis(self.answer, leaf.astype(np.intp), axis=1).sum(axis=0)
        beyond = np.maximum(self.low - features, features - self.high).max(axis=1)
        damped: Floats = answers * 0.5 ** np.maximum(beyond, 0.0)
        return damped

    def and_then(self, more: Forest) -> Forest:
        """This forest with more trees of the same depth, grown on the same rows and others.

        Ranges of features stay, so that ops far from what this forest saw are answered as before.
        """
        if not len(more.feature) or not len(self.feature):
            return more if len(more.feature) else self
        known = len(self.low)
        return replace(
            self,
            low=np.concatenate([self.low, more.low[known:]]),
            high=np.concatenate([self.high, more.high[known:]]),
            feature=np.concatenate([self.feature, more.feature]),
            threshold=np.concatenate([self.threshold, more.threshold]),
            answer=np.concatenate([self.answer, more.answer]),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that a file stores, by the names in `FOREST`."""
        return {
            "feature": self.feature.astype(np.int16),
            "threshold": self.threshold.astype(np.float32),
            "answer": self.answer.astype(np.float16),
            "low": self.low.astype(np.float32),
            "high": self.high.astype(np.float32),
            "sorts": self.families.astype(np.float32),
            "worth": np.array(self.trust, np.float32),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Forest:
        """The forest of the arrays that `arrays()` returned."""
        return cls(
            feature=arrays["feature"].astype(np.int64),
            threshold=arrays["threshold"].astype(np.float64),
            answer=arrays["answer"].astype(np.float64),
            low=arrays["low"].astype(np.float64),
            high=arrays["high"].astype(np.float64),
            families=arrays["sorts"].astype(np.float64),
            trust=float(arrays["worth"]),
        )


NOTHING = Forest(
    np.zeros((0, 1), np.int64), np.zeros((0, 1)), np.zeros((0, 2)), np.zeros(0), np.zeros(0)
)
"""A forest without trees, which answers zero."""


Physics = Callable[[Columns, GpuFacts, Theta], TimeLimits]
"""A physics model: the limits of each row's time on a GPU, given the fitted constants."""
Strings = NDArray[np.str_]


def _alone(seconds: Callable[[Columns, GpuFacts, Theta], Floats]) -> Physics:
    """A physics model whose learned factor applies to all of it, memory and launch included."""

    def limits(columns: Columns, gpu: GpuFacts, theta: Theta) -> TimeLimits:
        return TimeLimits(0.0, 0.0, seconds(columns, gpu, theta))

    return limits


PHYSICS: Mapping[str, tuple[Physics, Mapping[str, Bounds]]] = {
    "stream": (stream_limits, STREAM_PARAMETERS),
    "concatenation": (concatenation_limits, CONCATENATION_PARAMETERS),
    "product": (_alone(product_s), PRODUCT_PARAMETERS),
    "convolution": (convolution_limits, CONVOLUTION_PARAMETERS),
    "depthwise": (depthwise_limits, DEPTHWISE_PARAMETERS),
    "attention": (_alone(attention_s), ATTENTION_PARAMETERS),
    "recurrent": (_alone(recurrent_s), RECURRENT_PARAMETERS),
    "grouped": (_alone(grouped_s), GROUPED_PARAMETERS),
    "fused": (_alone(fused_s), FUSED_PARAMETERS),
    "xla": (_alone(fused_s), FUSED_PARAMETERS),
    "xla_depthwise": (_alone(tuned_depthwise_s), TUNED_DEPTHWISE_PARAMETERS),
}
"""The physics model of each kind of part, and the bounds of its constants."""
REACH = 1.0
"""The learned factor lies between exp(-REACH) and exp(REACH), and so does a chip's factor."""


@dataclass(frozen=True, eq=False)
class OpModel:
    """The model of one kind of part.

    The learned factor is exp(forest + family + architecture), within bounds. On top of it comes the
    factor of the chip, or of its generation where the chip was not measured enough.
    """

    name: str
    """The kind of part, a key of `PHYSICS`."""
    theta: Theta
    forest: Forest = NOTHING
    families: Mapping[str, float] = field(default_factory=dict)
    """Terms that are added to the logarithm of the learned factor, by the op's name."""
    generations: Mapping[str, float] = field(default_factory=dict)
    """The same by unit class and architecture ("cores.Pascal"): how far the GPUs of an architecture
    differ from the physics model."""
    chips: Mapping[str, Forest] = field(default_factory=dict)
    """Trees by unit class and chip ("tensor.Hopper.132"), for chips on which enough ops were
    measured to learn how fast their libraries are at each shape."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """Terms for other chips, by unit class and generation ("cores.7"), fitted on whole steps. Those
    of a vendor ("tensor.AMD") are for its generations that have none."""

    def seconds(self, columns: Columns, gpu: GpuFacts, added: Floats | float = 0.0) -> Floats:
        """The time of each part; `added` is the term of its op's name."""
        physics, _ = PHYSICS[self.name]
        features = FEATURES[self.name](columns, gpu)
        classes = classes_of(columns, gpu)
        learned = self.forest(features) + added
        learned = learned + _looked_up(self.generations, _joined(classes, gpu.architecture))
        factor = np.exp(np.clip(learned, -REACH, REACH))
        limits = physics(columns, gpu, self.theta)
        own = np.where(limits.chip_s > 0, self.chip(features, classes, gpu), 0.0)
        corrected: Floats = limits.seconds(factor) * np.exp(own)
        return corrected

    def chip(self, features: Floats, classes: Strings, gpu: GpuFacts) -> Floats:
        """The logarithm of the factor of each row's chip or, if it is unknown, of its generation.

        A chip's trees count less for filter families on which they were not fitted: what its
        libraries do with 3 x 3 filters says little about 4 x 4 filters. Convolutions in groups
        are left to `forest`: only one chip measured them.
        """
        usual = _looked_up(self.steps, _joined(classes, gpu.vendor))
        terms = _looked_up(self.steps, _joined(classes, gpu.generation), usual)
        keys = chips_of(classes, gpu)
        for key in np.unique(keys) if self.chips else ():
            if str(key) in self.chips:
                rows = (keys == key) & ~in_groups(self.name, features)
                forest = self.chips[str(key)]
                trust = forest.trust_in(filter_families(self.name, features[rows]))
                own = np.clip(forest(features[rows]), -REACH, REACH)
                terms[rows] = trust * own + (1.0 - trust) * terms[rows]
        return terms


def classes_of(columns: Columns, gpu: GpuFacts) -> Strings:
    """The unit class of each row: "tensor", "cores", or "memory" for passes over memory."""
    if "unit" not in columns:
        return np.full(len(next(iter(columns.values()))), "memory")
    return np.where(gpu.on_tensor_cores(columns["unit"].astype(np.int64)), "tensor", "cores")


def chips_of(classes: Strings, gpu: GpuFacts) -> Strings:
    """The key of each row in `OpModel.chips`."""
    count = np.asarray(gpu.sm).astype(np.int64).astype(str)
    return _joined(_joined(classes, gpu.architecture), count)


def _joined(classes: Strings, name: Any) -> Strings:
    keys: Strings = np.strings.add(np.strings.add(classes, "."), name)
    return keys


def _looked_up(offsets: Mapping[str, float], keys: Strings, usual: Floats | float = 0.0) -> Floats:
    """The term of each key; `usual` for keys that have none."""
    if not offsets:
        return np.zeros(len(keys))
    distinct, which = np.unique(keys, return_inverse=True)
    terms: Floats = np.array([offsets.get(str(key), np.nan) for key in distinct])[which]
    return np.where(np.isnan(terms), usual, terms)


def generation_of(columns: Columns, gpu: GpuFacts) -> Strings:
    """The key of each row in `OpModel.generations`."""
    return _joined(classes_of(columns, gpu), gpu.architecture)


# The features of the learned trees: shapes and ratios, never a number that identifies a GPU.
#
# No feature depends on the GPU's FLOP/s or bandwidth, so a GPU that is better in these is never
# predicted slower.


def _log(values: Floats) -> Floats:
    logarithms: Floats = np.log2(np.maximum(values, 2.0**-20))
    return logarithms


def _matrix(*columns: Any) -> Floats:
    matrix: Floats = np.stack(columns, axis=1).astype(np.float64)
    return matrix


BENCHMARKED = 0.4
"""The value of the feature "cuDNN searched for the fastest algorithm". It is well below 1, so that
rows without a search are close to rows with one, and a chip's trees count for both
(`Forest.__call__`). On many chips only convolutions after a search were measured."""


def product(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a matmul: its sides, waves of 128 x 128 tiles, how full they are, L2's share."""
    batch, m, n, k = (columns[name] for name in ("batch", "m", "n", "k"))
    tiles = batch * np.ceil(m / 128) * np.ceil(n / 128)
    full = m * n / (np.ceil(m / 128) * np.ceil(n / 128) * 128**2)
    return _matrix(
        _log(batch),
        _log(m),
        _log(n),
        _log(k),
        _log(np.minimum(m, n)),
        _log(tiles / gpu.sm),
        full,
        _log(columns["moved_bytes"] / gpu.l2_bytes),
        columns["alignment"],
        k % 16,
        columns["a_by_columns"],
        columns["b_by_columns"],
        gpu.on_tensor_cores(columns["unit"].astype(np.int64)) + 0.0,
        columns["item_bytes"],
    )


def convolution(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a convolution: what cuDNN chooses its algorithm by, and the matmul's shape.

    One says whether cuDNN has all its float32 algorithms for the GPU.
    """
    m, n = columns["m"], columns["n"]
    tiles = columns["groups"] * np.ceil(m / 128) * np.ceil(n / 128)
    nbytes = columns["image_bytes"] + columns["out_bytes"] + columns["weight_bytes"]
    return _matrix(
        columns["computes"],
        _log(columns["groups"]),
        _log(m),
        _log(n),
        _log(columns["k"]),
        _log(columns["taps"]),
        _log(columns["stride_area"]),
        _log(columns["channels"]),
        _log(columns["filters"]),
        _log(columns["out_points"]),
        _log(columns["images"]),
        columns["channels"] % 8,
        columns["filters"] % 8,
        _log(tiles / gpu.sm),
        _log(nbytes / gpu.l2_bytes),
        gpu.on_tensor_cores(columns["unit"].astype(np.int64)) + 0.0,
        columns["item_bytes"],
        columns["converted"],
        np.zeros(len(m)) + gpu.winograd,
        columns["channels_last"],
        BENCHMARKED * columns["benchmarked"],
        columns["dilated"],
        columns["by_torch"],
        columns["bfloat16"],
        columns["tf32"],
        columns["alignment"],
        columns["groups"] % 8,
        _log(width_of_groups(columns) / columns["channels"]),
        _log(width_of_groups(columns) / columns["filters"]),
    )


def attention(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of attention: lengths, widths, waves of blocks, and which kernel runs."""
    blocks = columns["sequences"] * np.ceil(columns["q_len"] / 128)
    return _matrix(
        _log(columns["sequences"]),
        _log(columns["q_len"]),
        _log(columns["k_len"]),
        columns["head_width"],
        columns["attended_share"] < 0.99,
        _log(blocks / gpu.sm),
        _log(columns["moved_bytes"] / gpu.l2_bytes),
        columns["backward"],
        columns["efficient"],
        columns["cudnn"],
        columns["biased"],
        columns["masked"],
        columns["dropout"],
        columns["of_mask"],
        _log(columns["shared_keys"]),
    )


def recurrent(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a recurrent layer: its sizes, its length, and whether weights fit on the SMs."""
    weights = columns["gates"] * columns["hidden"] ** 2 * columns["item_bytes"]
    return _matrix(
        _log(columns["steps"]),
        _log(columns["batch"]),
        _log(columns["inputs"]),
        _log(columns["hidden"]),
        columns["gates"],
        columns["layers"],
        columns["directions"],
        columns["backward"],
        _log(weights / gpu.sm),
        _log(weights / gpu.l2_bytes),
        columns["batch"] % 8,
        columns["hidden"] % 8,
        columns["item_bytes"],
    )


def stream(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a pass over memory: bytes relative to L2 and SMs, row width, kind of access."""
    moved = columns["read_bytes"] + columns["written_bytes"]
    rows = columns["elements"] / np.maximum(columns["row_width"], 1.0)
    return _matrix(
        _log(moved / gpu.l2_bytes),
        _log(moved / gpu.sm),
        _log(columns["reread_bytes"] / np.maximum(moved, 1.0)),
        _log(columns["flops"] / np.maximum(columns["elements"], 1.0)),
        _log(columns["row_width"]),
        _log(rows / gpu.sm),
        columns["item_bytes"],
        columns["reordered_bytes"] / np.maximum(moved, 1.0),
        _log(moved / np.maximum(columns["elements"], 1.0)),
        columns["by_row"],
        _log(columns["tensors"]),
        _log(columns["channel_blocks"] / gpu.sm),
        columns["channels_last"],
        columns["kind"],
        columns["backward"],
        columns["access"],
        _log(columns["kernels"]),
        _log(columns["blocks"] / gpu.sm),
        _log(columns["serial_elements"]),
        _log(columns["loop_blocks"] / gpu.sm),
        _log(columns["loop_terms"]),
    )


def concatenation(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a `cat`: how inputs are stored, how many items each SM moves, how unequal."""
    return _matrix(
        columns["inputs"],
        _log(columns["items"] / gpu.sm),
        columns["largest_items"] / np.maximum(columns["items"], 1.0),
    )


def fused(columns: Columns, gpu: GpuFacts) -> Floats:
    """Features of a fused kernel: bytes relative to L2 and SMs, its loops, and kinds of access."""
    moved = np.maximum(columns["read_bytes"] + columns["written_bytes"], 1.0)
    work = np.maximum(columns["points"] * columns["reduction"], 1.0)
    return _matrix(
        _log(moved / gpu.l2_bytes),
        _log(work / gpu.sm),
        _log(columns["points"] / gpu.sm),
        _log(columns["reduction"]),
        _log(moved / work),
        _log(columns["loads"] / work),
        _log(columns["flops"] / work),
        columns["random"] / work,
        columns["strided_bytes"] / moved,
        columns["indirect_bytes"] / moved,
        columns["again_bytes"] / moved,
        columns["atomic_adds"] / work,
        columns["windows"] / work,
        columns["online"] / work,
        columns["written_bytes"] / moved,
        _log(columns["tensors"]),
        columns["shape"],
        columns["inner"],
        columns["mixed"],
        columns["buffers"],
    )


FEATURES: Mapping[str, Callable[[Columns, GpuFacts], Floats]] = {
    "product": product,
    "grouped": product,
    "convolution": convolution,
    "depthwise": convolution,
    "attention": attention,
    "recurrent": recurrent,
    "stream": stream,
    "concatenation": concatenation,
    "fused": fused,
    "xla": fused,
    "xla_depthwise": convolution,
}


def in_groups(name: str, features: Floats) -> NDArray[np.bool_]:
    """Whether each row is a convolution in groups that is not depthwise."""
    if name != "convolution":
        return np.zeros(len(features), bool)
    grouped: NDArray[np.bool_] = features[:, 1] > 0.0
    return grouped


def filter_families(name: str, features: Floats) -> Floats:
    """The filter family of each row; a chip's own trees are trusted only for families they saw.

    A convolution's family is the number of points of its filter and its stride, both rounded to
    half a power of two, and whether it has groups. Rows of other models have no family: the result
    has no columns.
    """
    if name != "convolution":
        return features[:, :0]
    groups, taps, strides = features[:, 1], features[:, 5], features[:, 6]
    return _matrix(np.round(2.0 * taps) / 2.0, np.round(2.0 * strides) / 2.0, groups > 0.0)
