"""Physics of each kind of op, times a learned efficiency that is bounded.

The most accurate predictor without a measurement. Each op becomes parts (a product, a
convolution's gradient, a pass over memory), and `wavecast.predictors.learned` has a model for each sort of
part: tiles in waves over SMs, traffic of memory and L2, floors, with constants fitted on measured
ops of many GPUs; then boosted trees on shapes and ratios, held to a factor. `lab/fit/learned.py`
fits them, and leaves whole GPUs out to find the errors, which are the ranges. Ops without a model
get the share of the roofline that ops attain, and a wide range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from wavecast.files import shipped, shipped_toml
from wavecast.hardware.device import Device
from wavecast.ops import Unit
from wavecast.predictors.attainable import Attainable
from wavecast.predictors.base import Estimate, Predictor
from wavecast.predictors.learned.batch import UNMODELLED, Batch, batch_of, group_of
from wavecast.predictors.learned.gpus import CODES, Floats, GpuFacts, chip_name, gpu_of
from wavecast.predictors.learned.model import OpModel
from wavecast.predictors.learned.trees import FOREST, Forest
from wavecast.predictors.roofline import demand, limits
from wavecast.traces.step import Op, TensorSpec

COMPUTING = dict.fromkeys(("product", "grouped", "convolution", "attention"), "compute") | {
    "recurrent": "recurrent"
}
"""Models that `OpModel.steps` counts for, and the sort of constant they share."""
UNSEEN = 1.5
"""By how much the range of an op grows of which no like was measured."""
_MOST_BATCHES = 8
_SIDE = 8192
_TRUSTED = (0.5, 2.0)
"""A measured rate further off than this is not believed."""
_ROUNDS = 4


def _product(dtype: str, precision: str = "ieee") -> Op:
    """The product by which `wavecast calibrate` measures a rate."""
    side = TensorSpec((_SIDE, _SIDE), dtype)
    return Op("aten.mm", (side, side), (side,), (("precision", precision),))


CALIBRATED = {
    Unit.FP32: _product("float32"),
    Unit.TF32_TENSOR: _product("float32", "tf32"),
    Unit.FP16_TENSOR: _product("float16"),
    Unit.BF16_TENSOR: _product("bfloat16"),
}
"""The products by which `wavecast calibrate` measures rates."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of nine in ten ops on GPUs left out of the fit, measured over predicted lay in between."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Learned(Predictor):
    """Fitted physics and bounded learned efficiencies."""

    models: Mapping[str, OpModel] = field(repr=False)
    spreads: Mapping[str, Spread] = field(repr=False)
    """By group: "product/tensor", "norm", ...; "other" for those without."""
    fallback: Attainable = field(repr=False)
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict, repr=False)
    """By chip ("Hopper.132") and fact ("bf16_tensor_flops"): what `wavecast calibrate` measured on
    the very GPU whose ops the chip's trees were fitted on."""
    _batches: dict[tuple[Op, ...], tuple[Batch, tuple[bool, ...]]] = field(
        default_factory=dict, repr=False
    )
    _gpus: dict[Device, GpuFacts] = field(default_factory=dict, repr=False)

    @classmethod
    def shipped(cls) -> Learned:
        """The fit that comes with the package."""
        return _shipped()

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The time of one op. Many at once are predicted much faster: `predict_all`."""
        return self.predict_all((op,), device)[0]

    def predict_all(self, given: Sequence[Op], device: Device) -> list[Estimate | None]:
        """The time of each op; what does not depend on the GPU is kept for the next one."""
        gpu = self.gpu(device)
        if gpu is None or not given:
            return [self._fallen_back(op, device) for op in given]
        return list(self._answers(given, *self._batch(tuple(given)), gpu, device))

    def knows_chip(self, device: Device) -> bool:
        """Whether every model that has trees of chips has some of this one's."""
        chip = f".{chip_name(device)}"
        of_chips = [model.chips for model in self.models.values() if model.chips]
        return bool(of_chips) and all(any(k.endswith(chip) for k in each) for each in of_chips)

    def gpu(self, device: Device) -> GpuFacts | None:
        """The GPU, with rates at which large products take what they took on this very one.

        What `wavecast calibrate` measured says more than a data sheet: of clocks and power. Where
        it measured the GPU of the fit as well, it says by how much this one differs: a second of
        nothing but products draws more power than steps do, and H200s slow down by a fifth.
        """
        known = self._gpus.get(device)
        gpu = known or gpu_of(device)
        if known is None and gpu is not None:
            fitted = self.references.get(chip_name(device), {})
            for unit, op in CALIBRATED.items():
                fact = f"{unit}_flops"
                measured = device.measured.get(fact)
                if measured is None or device.rate(unit) is None:
                    continue
                if fact in fitted:
                    gpu = _faster(gpu, unit, measured.value / fitted[fact])
                else:
                    gpu = self._held(gpu, unit, op, measured.value)
            self._gpus[device] = gpu
        return gpu

    def _held(self, gpu: GpuFacts, unit: Unit, op: Op, measured: float) -> GpuFacts:
        """Memory does not count: a GPU with more bandwidth must not get slower cores for it."""
        batch = batch_of((op,), {})
        for _ in range(_ROUNDS):  # a lower rate draws less power, which allows a higher one
            cores = replace(gpu, bytes_per_s=np.inf, nominal_bytes_per_s=np.inf)
            said = 2.0 * _SIDE**3 / float(batch.seconds(self.models, cores)[0])
            gpu = _faster(gpu, unit, measured / said)
        return gpu

    def _answers(
        self,
        given: Sequence[Op],
        batch: Batch,
        modelled: Sequence[bool],
        gpu: GpuFacts,
        device: Device,
    ) -> Iterator[Estimate | None]:
        seconds = batch.seconds(self.models, gpu)
        low, high = self._ranges(batch, gpu)
        low_s = np.maximum(seconds * low, batch.least_s(gpu))
        rows = zip(
            given,
            seconds.tolist(),
            low_s.tolist(),
            (seconds * high).tolist(),
            batch.seen.tolist(),
            modelled,
            strict=True,
        )
        for op, mid_s, op_low_s, op_high_s, seen, known in rows:
            if not known:
                yield self._fallen_back(op, device)
            elif not 0 < mid_s < np.inf:
                yield None
            else:
                source = "learned" if seen else "learned, op unseen"
                yield Estimate(mid_s, op_low_s, op_high_s, source)

    def _ranges(self, batch: Batch, gpu: GpuFacts) -> tuple[Floats, Floats]:
        """Of each op: by how much less and by how much more than predicted it may take."""
        other = self.spreads["other"]
        sorts = list(zip(batch.main, batch.unit.tolist(), strict=True))
        spreads = {sort: self.spreads.get(group_of(*sort, gpu), other) for sort in set(sorts)}
        low, high = (
            np.array([getattr(spreads[sort], end) for sort in sorts]) for end in ("low", "high")
        )
        wider = np.where(batch.seen, 1.0, UNSEEN)
        return np.minimum(low / wider, 1.0), np.maximum(high * wider, 1.0)

    def _fallen_back(self, op: Op, device: Device) -> Estimate | None:
        found = self.fallback.predict(op, device)
        if found is None:
            return None
        least_s = max(limit.seconds for limit in limits(op, device))
        low_s = max(found.low_s / UNSEEN, least_s)
        return Estimate(found.seconds, low_s, found.high_s * UNSEEN, "attainable")

    def _batch(self, given: tuple[Op, ...]) -> tuple[Batch, tuple[bool, ...]]:
        """The ops by columns, and whether a model answers for each."""
        known = self._batches.get(given)
        if known is None:
            made = batch_of(given, self.models["stream"].families)
            pairs = zip(made.main, given, strict=True)
            modelled = tuple(main != UNMODELLED and not _crosses(op) for main, op in pairs)
            if len(self._batches) >= _MOST_BATCHES:
                self._batches.clear()
            known = self._batches[given] = made, modelled
        return known


def _faster(gpu: GpuFacts, unit: Unit, factor: float) -> GpuFacts:
    """With another rate of one unit."""
    factors = np.ones(len(gpu.rates))
    factors[CODES[unit]] = np.clip(factor, *_TRUSTED)
    return replace(gpu, rates=gpu.rates * factors)


def _crosses(op: Op) -> bool:
    """Whether bytes move between host and GPU."""
    wanted = demand(op)
    return wanted is not None and wanted.crossing_bytes > 0


@cache
def _shipped() -> Learned:
    card = shipped_toml("models/learned.toml")
    with np.load(shipped("models/learned.npz")) as stored:
        models = restored(dict(stored), card["models"])
    kernel = shipped_toml("models/grouped.toml")
    models["grouped"] = OpModel("grouped", kernel["constants"])
    ranges = {**card["groups"], **kernel["groups"]}
    spreads = {name: Spread(each["low"], each["high"]) for name, each in ranges.items()}
    constants = shipped_toml("models/generations.toml")
    known = Learned(models, spreads, Attainable.shipped(), card.get("references", {}))
    return with_steps(known, constants)


def with_steps(learned: Learned, constants: Mapping[str, Mapping[str, float]]) -> Learned:
    """The same with what whole steps say of generations, by sort (`COMPUTING`)."""
    models = {
        name: replace(model, steps=constants[COMPUTING[name]]) if name in COMPUTING else model
        for name, model in learned.models.items()
    }
    return replace(learned, models=models, _batches={}, _gpus={})


def restored(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, OpModel]:
    """The models that `stored` took apart."""
    return {name: _model(name, arrays) for name in names}


def _model(name: str, arrays: Mapping[str, np.ndarray]) -> OpModel:
    of_name = {key.partition("/")[2]: a for key, a in arrays.items() if key.startswith(name + "/")}
    theta = dict(zip(of_name["names"].tolist(), of_name["values"].tolist(), strict=True))
    families = dict(zip(of_name["families"].tolist(), of_name["factors"].tolist(), strict=True))
    generations = dict(
        zip(of_name["generations"].tolist(), of_name["offsets"].tolist(), strict=True)
    )
    chips = {
        chip: Forest.of({key: of_name[f"{chip}/{key}"] for key in FOREST})
        for chip in of_name["chips"].tolist()
    }
    return OpModel(name, theta, Forest.of(of_name), families, generations, chips)


def stored(models: Mapping[str, OpModel]) -> dict[str, np.ndarray]:
    """What the file of the shipped fit holds."""
    arrays: dict[str, np.ndarray] = {}
    for name, model in models.items():
        arrays |= {f"{name}/{key}": array for key, array in model.forest.arrays().items()}
        arrays[f"{name}/names"] = np.array(list(model.theta))
        arrays[f"{name}/values"] = np.array(list(model.theta.values()))
        arrays[f"{name}/families"] = np.array(list(model.families), dtype=str)
        arrays[f"{name}/factors"] = np.array(list(model.families.values()), dtype=np.float64)
        arrays[f"{name}/generations"] = np.array(list(model.generations), dtype=str)
        arrays[f"{name}/offsets"] = np.array(list(model.generations.values()), dtype=np.float64)
        arrays[f"{name}/chips"] = np.array(list(model.chips), dtype=str)
        for chip, forest in model.chips.items():
            arrays |= {f"{name}/{chip}/{key}": array for key, array in forest.arrays().items()}
    return arrays
