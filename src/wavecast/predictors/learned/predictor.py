"""The predictor from physics and learned efficiencies, the most accurate without a measurement.

Each op becomes parts: a matmul, a convolution's gradient, a pass over memory. There is one model
for each kind of part. Its physics has tiles in waves over SMs, traffic of memory and L2, and a
floor, with constants fitted on measured ops of many GPUs. Its boosted trees add a factor, within
bounds, that depends on shapes and ratios. `lab/fit/learned.py` fits them; it leaves out whole GPUs
to find the errors, which become the ranges. Ops without a model get the share of the roofline that
such ops attain, with a wide range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from wavecast.files import shipped, shipped_toml
from wavecast.hardware.devices import Device
from wavecast.hardware.devices import device as find_device
from wavecast.ops import Unit
from wavecast.predictors.attainable import Attainable, demand, limits
from wavecast.predictors.base import Estimate, Familiarity, Predictor, Spread
from wavecast.predictors.learned.batch import UNMODELLED, Batch, batch_of, group_of
from wavecast.predictors.learned.gpus import (
    CODES,
    Floats,
    GpuFacts,
    assumed_facts,
    chip_name,
    gpu_of,
)
from wavecast.predictors.learned.model import FOREST, Forest, OpModel
from wavecast.traces.kept import Recent
from wavecast.traces.step import Op, TensorSpec

COMPUTING = dict.fromkeys(("product", "grouped", "convolution", "attention"), "compute") | {
    "recurrent": "recurrent",
    "depthwise": "depthwise",
}
"""The models that have terms by generation (`OpModel.steps`), and the set of terms of each."""
UNSEEN = 1.5
"""The factor by which the range widens for an op whose name was not in the fit."""
_MOST_BATCHES = 8


@dataclass(frozen=True, eq=False)
class Learned(Predictor):
    """Predicts op times by fitted physics and learned efficiencies within bounds.

    Example:
        >>> learned = Learned.shipped()
        >>> learned.predict(op, wavecast.device("h100-sxm-80gb")).seconds
    """

    models: Mapping[str, OpModel] = field(repr=False)
    spreads: Mapping[str, Spread] = field(repr=False)
    """The range of each group of ops ("product/tensor", "norm", ...); "other" for the rest."""
    fallback: Attainable = field(repr=False)
    """Answers for ops without a model."""
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict, repr=False)
    """The rates that `wavecast calibrate` measured on the card whose ops were in the fit, by chip
    ("Hopper.132") and fact ("bf16_tensor_flops")."""
    fitted_on: tuple[Device, ...] = field(default=(), repr=False)
    """The GPUs whose measured ops were in the fit."""
    _batches: Recent[tuple[Batch, tuple[bool, ...]]] = field(
        init=False, default_factory=lambda: Recent(_MOST_BATCHES), repr=False
    )
    _gpus: dict[Device, GpuFacts] = field(init=False, default_factory=dict, repr=False)

    @classmethod
    @cache
    def shipped(cls) -> Learned:
        """The fit that comes with the package."""
        card = shipped_toml("models/learned.toml")
        with np.load(shipped("models/learned.npz")) as stored:
            models = restored(dict(stored), card["models"])
        ranges = dict(card["groups"])
        for name in ("grouped", "concatenation"):
            kernel = shipped_toml(f"models/{name}.toml")
            models[name] = OpModel(name, kernel["constants"])
            ranges |= kernel["groups"]
        for name, kinds in (("fused", ["fused"]), ("xla", ["xla", "xla_depthwise"])):
            with np.load(shipped(f"models/{name}.npz")) as stored:
                models |= restored(dict(stored), kinds)
            ranges |= shipped_toml(f"models/{name}.toml")["groups"]
        spreads = {name: Spread(ends["low"], ends["high"]) for name, ends in ranges.items()}
        fitted_on = tuple(find_device(gpu) for gpu in card["gpus"])
        references = card.get("references", {})
        learned = cls(models, spreads, Attainable.shipped(), references, fitted_on)
        return with_steps(learned, shipped_toml("models/generations.toml"))

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The time of one op. For many ops, `predict_all` is much faster."""
        return self.predict_all((op,), device)[0]

    def predict_all(self, given: Sequence[Op], device: Device) -> list[Estimate | None]:
        """The time of each op; the columns, which do not depend on the GPU, are kept."""
        gpu = self.gpu(device)
        if gpu is None or not given:
            return [self._fallen_back(op, device) for op in given]
        return list(self._answers(given, *self._batch(tuple(given)), gpu, device))

    def knows_chip(self, device: Device) -> bool:
        """Whether every model that has trees for chips has trees for this one."""
        chip = f".{chip_name(device)}"
        with_chips = [model.chips for model in self.models.values() if model.chips]
        return bool(with_chips) and all(
            any(key.endswith(chip) for key in chips) for chips in with_chips
        )

    def familiarity(self, device: Device) -> Familiarity | None:
        """How well the fit knows a GPU; None if it cannot use its models for that GPU."""
        if self.gpu(device) is None:
            return None
        if self.knows_chip(device):
            return Familiarity.MEASURED
        if chip_name(device) in map(chip_name, self.fitted_on):
            return Familiarity.PARTLY
        if any(other.vendor == device.vendor for other in self.fitted_on):
            return Familiarity.UNSEEN
        return Familiarity.FOREIGN

    def assumptions(self, device: Device) -> tuple[str, ...]:
        """What was assumed where the device's file lacks facts, and whether its vendor was seen."""
        assumed = assumed_facts(device)
        if self.familiarity(device) is Familiarity.FOREIGN:
            return (*assumed, f"not verified: no op of {device.vendor}'s GPUs is in the fit")
        return assumed

    def gpu(self, device: Device) -> GpuFacts | None:
        """The numbers of a GPU, with measured rates if it was calibrated; None if unknown."""
        if device not in self._gpus:
            gpu = gpu_of(device)
            if gpu is None:
                return None
            fitted = self.references.get(chip_name(device), {})
            self._gpus[device] = calibrated(gpu, device, self.models, fitted)
        return self._gpus[device]

    def least_s(self, given: Sequence[Op], device: Device) -> list[float]:
        """The physical bound of each op's time; 0 where it is not known."""
        gpu = self.gpu(device)
        if gpu is None or not given:
            return [0.0] * len(given)
        batch, _ = self._batch(tuple(given))
        with np.errstate(all="ignore"):
            bounds: list[float] = np.nan_to_num(batch.least_s(gpu), posinf=0.0).tolist()
        return bounds

    def _answers(
        self,
        given: Sequence[Op],
        batch: Batch,
        modelled: Sequence[bool],
        gpu: GpuFacts,
        device: Device,
    ) -> Iterator[Estimate | None]:
        # Sizes of 0 or near 2^63 give no time, or one that is not finite; both become None below.
        with np.errstate(all="ignore"):
            seconds = batch.seconds(self.models, gpu)
            low, high = self._ranges(batch, gpu)
            low_s = np.maximum(seconds * low, batch.least_s(gpu))
            high_s = seconds * high
        rows = zip(
            given,
            seconds.tolist(),
            low_s.tolist(),
            high_s.tolist(),
            batch.seen.tolist(),
            modelled,
            strict=True,
        )
        for op, mid_s, op_low_s, op_high_s, seen, has_model in rows:
            if not has_model:
                yield self._fallen_back(op, device)
            elif not 0 < op_low_s <= mid_s <= op_high_s < np.inf:
                yield None
            else:
                source = "learned" if seen else "learned, op unseen"
                yield Estimate(mid_s, op_low_s, op_high_s, source)

    def _ranges(self, batch: Batch, gpu: GpuFacts) -> tuple[Floats, Floats]:
        """The factors of each op's range: low end and high end over the prediction."""
        other = self.spreads["other"]
        pairs = list(zip(batch.main, batch.unit.tolist(), strict=True))
        spreads = {pair: self.spreads.get(group_of(*pair, gpu), other) for pair in set(pairs)}
        low = np.array([spreads[pair].low for pair in pairs])
        high = np.array([spreads[pair].high for pair in pairs])
        wider = np.where(batch.seen, 1.0, UNSEEN)
        return np.minimum(low / wider, 1.0), np.maximum(high * wider, 1.0)

    def _fallen_back(self, op: Op, device: Device) -> Estimate | None:
        estimate = self.fallback.predict(op, device)
        if estimate is None:
            return None
        least_s = max(limit.seconds for limit in limits(op, device))
        low_s = max(estimate.low_s / UNSEEN, least_s)
        return Estimate(estimate.seconds, low_s, estimate.high_s * UNSEEN, "attainable")

    def _batch(self, given: tuple[Op, ...]) -> tuple[Batch, tuple[bool, ...]]:
        """The ops by columns, and whether a model answers for each."""
        if (kept := self._batches.get(given)) is not None:
            return kept
        batch = batch_of(given, self.models["stream"].families)
        pairs = zip(batch.main, given, strict=True)
        modelled = tuple(main != UNMODELLED and not _crosses(op) for main, op in pairs)
        return self._batches.put(given, (batch, modelled))


def _crosses(op: Op) -> bool:
    """Whether the op copies between host and GPU."""
    work = demand(op)
    return work is not None and work.crossing_bytes > 0


def with_steps(learned: Learned, constants: Mapping[str, Mapping[str, float]]) -> Learned:
    """The same predictor with other terms by generation, which are fitted on whole steps."""
    models = {
        name: replace(model, steps=constants[COMPUTING[name]]) if name in COMPUTING else model
        for name, model in learned.models.items()
    }
    return replace(learned, models=models)


# The rates of a GPU as `wavecast calibrate` measured them on one card.


_SIDE = 8192
_TRUSTED = (0.5, 2.0)
"""A measurement changes a rate of the data sheet by at most these factors."""
_ROUNDS = 4


def _product(dtype: str, precision: str = "ieee") -> Op:
    side = TensorSpec((_SIDE, _SIDE), dtype)
    return Op("aten.mm", (side, side), (side,), (("precision", precision),))


CALIBRATED = {
    Unit.FP32: _product("float32"),
    Unit.TF32_TENSOR: _product("float32", "tf32"),
    Unit.FP16_TENSOR: _product("float16"),
    Unit.BF16_TENSOR: _product("bfloat16"),
}
"""The matmuls with which `wavecast calibrate` measures the rate of each unit."""


def calibrated(
    gpu: GpuFacts, device: Device, models: Mapping[str, OpModel], fitted: Mapping[str, float]
) -> GpuFacts:
    """The GPU with rates at which large matmuls take the time that was measured on this card.

    A measurement says more about clocks and power than a data sheet. If the card of the fit was
    measured as well, the ratio of the two counts: a second of nothing but matmuls draws more power
    than training steps do, and H200s slow down by a fifth.

    Args:
        gpu: The numbers of the GPU, from its data sheet.
        device: The device, whose `measured` facts count.
        models: The op models.
        fitted: The rates measured on the card of the fit, by fact ("bf16_tensor_flops").
    """
    for unit, op in CALIBRATED.items():
        fact = f"{unit}_flops"
        measured = device.measured.get(fact)
        if measured is None or device.rate(unit) is None:
            continue
        if fact in fitted:
            gpu = _faster(gpu, unit, measured.value / fitted[fact])
        else:
            gpu = _with_rate(gpu, unit, op, measured.value, models)
    return gpu


def _with_rate(
    gpu: GpuFacts, unit: Unit, op: Op, measured: float, models: Mapping[str, OpModel]
) -> GpuFacts:
    """The GPU with a rate at which the models predict the measured FLOP/s for the matmul.

    Memory is left out: a GPU with more bandwidth must not get slower cores because of it.
    """
    batch = batch_of((op,), {})
    for _ in range(_ROUNDS):  # a lower rate draws less power, which allows a higher one
        cores = replace(gpu, bytes_per_s=np.inf, nominal_bytes_per_s=np.inf)
        predicted = 2.0 * _SIDE**3 / float(batch.seconds(models, cores)[0])
        gpu = _faster(gpu, unit, measured / predicted)
    return gpu


def _faster(gpu: GpuFacts, unit: Unit, factor: float) -> GpuFacts:
    """The GPU with the rate of one unit multiplied."""
    factors = np.ones(len(gpu.rates))
    factors[CODES[unit]] = np.clip(factor, *_TRUSTED)
    return replace(gpu, rates=gpu.rates * factors)


# The op models as the arrays of an .npz file.


def stored(models: Mapping[str, OpModel]) -> dict[str, np.ndarray]:
    """The arrays that the file of the shipped fit contains."""
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


def restored(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, OpModel]:
    """The models of these names, from the arrays that `stored` returned."""
    return {name: _model(name, arrays) for name in names}


def _model(name: str, arrays: Mapping[str, np.ndarray]) -> OpModel:
    of_name = {key.partition("/")[2]: a for key, a in arrays.items() if key.startswith(name + "/")}

    def table(keys: str, values: str) -> dict[str, float]:
        return dict(zip(of_name[keys].tolist(), of_name[values].tolist(), strict=True))

    chips = {
        chip: Forest.of({key: of_name[f"{chip}/{key}"] for key in FOREST})
        for chip in of_name["chips"].tolist()
    }
    return OpModel(
        name=name,
        theta=table("names", "values"),
        forest=Forest.of(of_name),
        families=table("families", "factors"),
        generations=table("generations", "offsets"),
        chips=chips,
    )
