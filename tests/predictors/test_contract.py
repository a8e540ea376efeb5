"""The contract, held by every predictor and every scaler of the package.

Add yours to PREDICTORS or SCALERS. The promises and their checks are in `contract.py`.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made import copy_to_gpu, mm, relu, tensor, unknown, view
from predictors.contract import (
    PREDICTOR_CHECKS,
    SCALER_CHECKS,
    Excuses,
    LowerBound,
    Promise,
    check_better_gpu,
    check_better_target,
    check_bound,
    check_faster_gpu,
    check_faster_target,
    check_predictor,
    check_scaler,
    roofline_s,
)
from predictors.drawn import GPUS, MAKERS, calls, devices, dtypes, gains, ops, sizes, small

import wavecast
from wavecast.hardware.devices import Device, device
from wavecast.predictors.attainable import Attainable, Roofline, bound
from wavecast.predictors.base import Estimate, Predictor, Scaler
from wavecast.predictors.corrected import Corrected
from wavecast.predictors.habitat import Habitat, MixedPrecision, published_setup
from wavecast.predictors.learned import Learned
from wavecast.predictors.learned.batch import batch_of
from wavecast.predictors.learned.gpus import gpu_of
from wavecast.predictors.mlp import Mlp
from wavecast.predictors.wave import WaveScaling
from wavecast.traces.step import Call, Kernel, Op, Phase

PREDICTORS: dict[str, Predictor] = {
    "roofline": Roofline(),
    "attainable": Attainable.shipped(),
    "learned": Learned.shipped(),
    "corrected": Corrected(Learned.shipped(), {}),
    "mlp": Mlp.shipped(),
}
SCALERS: dict[str, Scaler] = {
    "wave scaling": WaveScaling(),
    "habitat with learned": Habitat.shipped(),
    "habitat with mlp": Habitat(Mlp.shipped()),
    "mixed precision": MixedPrecision.shipped("bf16"),
    "habitat as published": published_setup("habitat").scaler(),
    "mixed precision by Daydream's rule": MixedPrecision(WaveScaling(), "fp16"),
}

_NETWORK = "a network of layer sizes and GPU numbers, as published: nothing makes it monotone"
_EQUATION_3 = (
    "gamma of Habitat's Eq. 3 depends on the target's ratio of FLOP/s to bandwidth, so that more "
    "of one alone can move weight to the limit that is slower"
)
_PRECISION = "the answer is for another precision than the measured one"
_PUBLISHED = "a GPU of the paper has the paper's numbers, and its networks are not monotone"
EXCUSED: dict[str, Excuses] = {
    "mlp": {
        Promise.BETTER_GPU: _NETWORK,
        Promise.FASTER_GPU: _NETWORK,
        Promise.RATIOS: "Habitat divides what the networks say; `predict` also applies the bound",
    },
    "wave scaling": {Promise.BETTER_GPU: _EQUATION_3},
    "habitat with learned": {Promise.BETTER_GPU: _EQUATION_3},
    "habitat with mlp": {Promise.BETTER_GPU: _NETWORK, Promise.FASTER_GPU: _NETWORK},
    "mixed precision": {Promise.BETTER_GPU: _EQUATION_3, Promise.OWN_GPU: _PRECISION},
    "habitat as published": {Promise.BETTER_GPU: _PUBLISHED, Promise.FASTER_GPU: _PUBLISHED},
    "mixed precision by Daydream's rule": {
        Promise.BETTER_GPU: _EQUATION_3,
        Promise.OWN_GPU: _PRECISION,
    },
}
FASTER_WITH_A_LARGER_BATCH = {"roofline": 1.0, "attainable": 1.0, "learned": 2.5}
"""The factor by which a larger batch may be predicted faster. Trees are step functions, and real
libraries change their algorithm. The Mlp promises nothing here."""
FASTER_WITH_A_LARGER_BATCH["corrected"] = FASTER_WITH_A_LARGER_BATCH["learned"]
LAYERS_OF_MLP = ("mm", "addmm", "bmm", "convolution", "convolution backward", "lstm")
ANSWERED_BY_MLP = tuple(kind for kind in LAYERS_OF_MLP if kind != "lstm")
"""Such LSTMs were measured on the H200 alone, so the networks do not answer on other GPUs."""


def learned_least_s(op: Op, gpu: Device) -> float | None:
    """The roofline, less what Winograd's algorithm saves and what L2 may already hold."""
    facts = gpu_of(gpu)
    if facts is None or bound(op, gpu) is None or "_to_copy" in op.name:
        return roofline_s(op, gpu)
    return float(batch_of([op], {}).least_s(facts)[0])


LEAST_S: dict[str, LowerBound] = dict.fromkeys(("learned", "corrected"), learned_least_s)

OPS = (
    *(make(64, 32, 32, "float32") for make in MAKERS.values()),
    *(make(512, 16, 32, "float16") for make in MAKERS.values()),
    *(mm(512, 512, 512), mm(8192, 1024, 1024), unknown(), view(4, 4), relu(0, 8)),
)
_LAUNCH = (4096, 1, 1), (256, 1, 1), 32, 0
_KERNELS = Kernel("sgemm", 1e-3, *_LAUNCH), Kernel("k", 3e-4, *_LAUNCH)
CALLS = (
    *(Call(op, Phase.FORWARD, kernels=_KERNELS) for op in OPS),
    Call(mm(), Phase.FORWARD),
    Call(mm(), Phase.OPTIMIZER, kernels=(Kernel("k", 1e-5),)),
)


def promises(
    subjects: Mapping[str, object], checks: Mapping[Promise, object], excused: bool
) -> list[tuple[str, Promise]]:
    """Each subject with each promise that it keeps or, if `excused`, that it does not keep."""
    pairs = product(subjects, checks)
    return [
        (name, promise) for name, promise in pairs if (promise in EXCUSED.get(name, {})) is excused
    ]


def only_not_excused_from(promise: Promise) -> Excuses:
    """Excuses from all promises but one."""
    return {other: "another promise" for other in Promise if other is not promise}


def ids(pair: object) -> str:
    """A short name for a test's parameter."""
    return pair.name.lower() if isinstance(pair, Promise) else str(pair)


# Everyone is in the lists.


def subclasses(base: str) -> set[str]:
    """The classes of the package that derive from a class, directly or not, by their names."""
    parents: dict[str, set[str]] = {}
    for file in Path(wavecast.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = {ast.unparse(parent).split(".")[-1] for parent in node.bases}
    children: set[str] = set()
    while more := {name for name, of in parents.items() if of & (children | {base})} - children:
        children |= more
    return children


@pytest.mark.parametrize(("base", "subjects"), [("Predictor", PREDICTORS), ("Scaler", SCALERS)])
def test_every_class_of_the_package_is_held_to_the_contract(
    base: str, subjects: Mapping[str, object]
) -> None:
    assert subclasses(base) == {type(subject).__name__ for subject in subjects.values()}


def test_every_exception_has_a_reason() -> None:
    assert set(EXCUSED) <= PREDICTORS.keys() | SCALERS.keys()
    assert all(reason for excuses in EXCUSED.values() for reason in excuses.values())


@pytest.mark.parametrize("base", [Predictor, Scaler])
def test_the_example_in_the_docstring_keeps_the_contract(base: type) -> None:
    names = {"Predictor": Predictor, "Scaler": Scaler, "Estimate": Estimate}
    namespace: dict[str, Any] = dict(names)
    for example in doctest.DocTestParser().get_examples(str(base.__doc__)):
        exec(example.source, namespace)
    (example_class,) = (
        namespace[name] for name in namespace.keys() - names.keys() - {"__builtins__", "bound"}
    )
    if base is Predictor:
        check_predictor(example_class(), OPS, GPUS)
    else:
        check_scaler(example_class(), CALLS, GPUS)


# Predictors.


@pytest.mark.parametrize("name", PREDICTORS)
def test_predictors_keep_their_promises_for_common_ops(name: str) -> None:
    check_predictor(PREDICTORS[name], OPS, GPUS[2:5], EXCUSED.get(name, {}), LEAST_S.get(name))


@pytest.mark.parametrize(
    ("name", "promise"), promises(PREDICTORS, PREDICTOR_CHECKS, excused=False), ids=ids
)
@settings(max_examples=30)
@given(st.lists(ops(), min_size=1, max_size=3), devices())
def test_predictors_keep_their_promises_for_any_op(
    name: str, promise: Promise, asked: Sequence[Op], gpu: Device
) -> None:
    PREDICTOR_CHECKS[promise](PREDICTORS[name], asked, gpu)


@pytest.mark.parametrize(
    ("name", "promise"), promises(PREDICTORS, PREDICTOR_CHECKS, excused=True), ids=ids
)
def test_exceptions_of_predictors_are_needed(name: str, promise: Promise) -> None:
    with pytest.raises(AssertionError, match="broken"):
        check_predictor(PREDICTORS[name], OPS, GPUS, only_not_excused_from(promise))


@pytest.mark.parametrize("name", PREDICTORS)
@given(ops(), devices())
def test_no_answer_is_faster_than_physics_allows(name: str, op: Op, gpu: Device) -> None:
    check_bound(PREDICTORS[name], [op], gpu, LEAST_S.get(name))
    if bound(op, gpu) is None:
        assert PREDICTORS[name].predict(op, gpu) is None


@pytest.mark.parametrize("name", [n for n in PREDICTORS if n != "mlp"])
@given(ops(), devices(), gains, st.floats(1, 20))
def test_a_better_gpu_is_never_slower(
    name: str, op: Op, gpu: Device, gain: dict[str, float], factor: float
) -> None:
    check_better_gpu(PREDICTORS[name], [op], gpu, gain)
    check_faster_gpu(PREDICTORS[name], [op], gpu, factor)


@pytest.mark.parametrize("name", FASTER_WITH_A_LARGER_BATCH)
@given(st.sampled_from(sorted(MAKERS)), sizes, sizes, small, small, dtypes, devices())
def test_a_larger_batch_is_never_faster(
    name: str, kind: str, b1: int, b2: int, c: int, n: int, dtype: str, gpu: Device
) -> None:
    low, high = sorted((b1, b2))
    assume(low < high)
    less, more = (MAKERS[kind](b, c, n, dtype) for b in (low, high))
    few, many = (PREDICTORS[name].predict(op, gpu) for op in (less, more))
    assert (few is None) == (many is None)
    if few is not None and many is not None:
        slack = FASTER_WITH_A_LARGER_BATCH[name]
        assert few.seconds <= many.seconds * slack * (1 + 1e-12)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(n, k) for n, k in product(PREDICTORS, MAKERS) if n != "mlp" or k in ANSWERED_BY_MLP],
)
def test_common_ops_are_answered_on_a_common_gpu(name: str, kind: str) -> None:
    dtype = "float32" if name == "mlp" else "float16"  # Habitat's networks are for float32 only
    op = MAKERS[kind](64, 32, 32, dtype)
    assert PREDICTORS[name].predict(op, device("a100-sxm-80gb")) is not None


every_predictor = pytest.mark.parametrize("predictor", PREDICTORS.values(), ids=PREDICTORS)
every_predictor_of_all_ops = pytest.mark.parametrize(
    "predictor", [PREDICTORS[n] for n in PREDICTORS if n != "mlp"], ids=lambda p: type(p).__name__
)


@every_predictor
@given(devices())
def test_an_unknown_op_is_not_guessed(predictor: Predictor, gpu: Device) -> None:
    assert predictor.predict(unknown(), gpu) is None


@every_predictor
def test_a_known_op_without_a_formula_is_not_guessed(predictor: Predictor) -> None:
    matrix = tensor(8, 8)
    assert predictor.predict(Op("aten.linalg_qr", (matrix,), (matrix, matrix)), GPUS[0]) is None


@every_predictor
@pytest.mark.parametrize("op", [view(4, 4), relu(0, 8)], ids=["view", "no elements"])
def test_nothing_to_run_takes_no_invented_time(predictor: Predictor, op: Op) -> None:
    assert predictor.predict(op, device("l4")) is None


@every_predictor_of_all_ops
def test_a_gpu_without_bf16_units_runs_bf16_in_fp32(predictor: Predictor) -> None:
    v100 = device("v100-sxm-32gb")
    assert v100.bf16_tensor_flops is None
    size = 4096
    half = predictor.predict(mm(size, size, size, "bfloat16"), v100)
    assert half is not None
    assert half.seconds >= 2 * size**3 / v100.fp32_flops


@every_predictor_of_all_ops
def test_fp8_on_a_gpu_without_it_is_not_predicted(predictor: Predictor) -> None:
    eights = tensor(64, 64, dtype="float8_e4m3fn")
    op = Op("aten._scaled_mm", (eights, eights), (tensor(64, 64, dtype="bfloat16"),))
    assert predictor.predict(op, device("a100-sxm-80gb")) is None
    assert predictor.predict(op, device("h100-sxm-80gb")) is not None


@every_predictor_of_all_ops
def test_int8_products_are_predicted_where_the_rate_is_known(predictor: Predictor) -> None:
    eights = tensor(64, 64, dtype="int8")
    op = Op("aten._int_mm", (eights, eights), (tensor(64, 64, dtype="int32"),))
    known = [gpu.int8_tensor_flops is not None for gpu in GPUS]
    assert [predictor.predict(op, gpu) is not None for gpu in GPUS] == known
    assert any(known)
    assert not all(known)


@every_predictor_of_all_ops
def test_a_copy_to_the_gpu_is_no_faster_than_its_link(predictor: Predictor) -> None:
    gpu = device("h100-sxm-80gb")
    answer = predictor.predict(copy_to_gpu(1 << 24), gpu)
    assert answer is not None
    assert gpu.pcie_bytes_per_s is not None
    assert answer.seconds >= (4 << 24) / gpu.pcie_bytes_per_s


@every_predictor_of_all_ops
def test_a_copy_over_a_link_of_unknown_speed_is_not_predicted(predictor: Predictor) -> None:
    gpu = dataclasses.replace(device("h100-sxm-80gb"), pcie_bytes_per_s=None)
    assert predictor.predict(copy_to_gpu(1 << 24), gpu) is None
    assert predictor.predict(relu(1 << 24), gpu) is not None


# Scalers.


@pytest.mark.parametrize("name", SCALERS)
def test_scalers_keep_their_promises_for_common_ops(name: str) -> None:
    check_scaler(SCALERS[name], CALLS, GPUS[2:5], EXCUSED.get(name, {}))


@pytest.mark.parametrize(
    ("name", "promise"), promises(SCALERS, SCALER_CHECKS, excused=False), ids=ids
)
@settings(max_examples=30)
@given(st.lists(calls(), min_size=1, max_size=3), devices(), devices())
def test_scalers_keep_their_promises_for_any_call(
    name: str, promise: Promise, measured: Sequence[Call], origin: Device, target: Device
) -> None:
    SCALER_CHECKS[promise](SCALERS[name], measured, origin, target)


@pytest.mark.parametrize(
    ("name", "promise"), promises(SCALERS, SCALER_CHECKS, excused=True), ids=ids
)
def test_exceptions_of_scalers_are_needed(name: str, promise: Promise) -> None:
    with pytest.raises(AssertionError, match="broken"):
        check_scaler(SCALERS[name], CALLS, GPUS, only_not_excused_from(promise))


@pytest.mark.parametrize(
    "name", [n for n in SCALERS if Promise.FASTER_GPU not in EXCUSED.get(n, {})]
)
@given(calls(), devices(), devices(), st.floats(1, 20))
def test_a_target_that_is_faster_in_everything_is_never_slower(
    name: str, call: Call, origin: Device, target: Device, factor: float
) -> None:
    check_faster_target(SCALERS[name], [call], origin, target, factor)


@given(st.sampled_from(LAYERS_OF_MLP), sizes, small, dtypes, devices(), devices(), gains)
def test_habitat_with_learned_is_monotone_where_it_takes_ratios(
    kind: str,
    batch: int,
    size: int,
    dtype: str,
    origin: Device,
    target: Device,
    gain: dict[str, float],
) -> None:
    op = MAKERS[kind](batch, size, size, dtype)
    assume(Learned.shipped().ratios([op], origin, target) != [None])
    call = Call(op, Phase.FORWARD, kernels=(Kernel("k", 1e-3),))
    check_better_target(Habitat.shipped(), [call], origin, target, gain)
