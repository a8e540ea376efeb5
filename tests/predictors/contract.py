"""The contract of predictors and scalers, as checks that you can run on your own.

    from predictors.contract import check_predictor, check_scaler

    check_predictor(MyPredictor(), ops, devices)
    check_scaler(MyScaler(), calls, devices)

Both raise an AssertionError that names the broken promise, the op and the GPU. A predictor that
cannot keep a promise is excused from it, with the reason: `excused={Promise.BETTER_GPU: "..."}`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from wavecast.hardware.devices import Device
from wavecast.predictors.attainable import bound
from wavecast.predictors.base import Estimate, Predictor, Scaler
from wavecast.traces.step import Call, Op


class Promise(StrEnum):
    """What a predictor or a scaler promises."""

    RANGE = "an answer is None, or 0 < low_s <= seconds <= high_s < infinity, with a source"
    BOUND = "no answer is below the physical bound"  # predictors only
    REPEATABLE = "the same question gets the same answer"
    UNCHANGED = "asking changes neither the op nor the GPU"
    BETTER_GPU = "a GPU that is better in some rates and worse in none is not slower"
    FASTER_GPU = "a GPU whose rates are all higher by the same factor is not slower"
    BATCH = "the answers for many are the answers for each"
    RATIOS = "the ratio between two GPUs is the quotient of their predictions"  # predictors only
    OWN_GPU = "on the GPU where it was measured, a call takes what was measured"  # scalers only


Excuses = Mapping[Promise, str]
"""The promises that are not kept, each with the reason."""
NO_EXCUSES: Excuses = {}
LowerBound = Callable[[Op, Device], float | None]
"""The least seconds that physics allows an op on a GPU; None when unknown."""

RATES = tuple(
    field.name for field in dataclasses.fields(Device) if field.name.endswith(("_flops", "_per_s"))
)
"""The fields of a device that are rates: more is better."""
ROUNDING = 1e-12
"""Sums in another order differ in the last digits."""


def check_predictor(
    predictor: Predictor,
    ops: Sequence[Op],
    devices: Iterable[Device],
    excused: Excuses = NO_EXCUSES,
    least_s: LowerBound | None = None,
) -> None:
    """Hold a predictor to every promise, for these ops on these GPUs.

    Args:
        predictor: The predictor to check.
        ops: Ops to ask for. Include some that it answers and some that it does not know.
        devices: GPUs to ask for.
        excused: Promises that it does not keep, with the reasons.
        least_s: The physical bound, where it is not the roofline.
    """
    for device in devices:
        for promise, check in PREDICTOR_CHECKS.items():
            if promise not in excused:
                check(predictor, ops, device)
        if Promise.BOUND not in excused:
            check_bound(predictor, ops, device, least_s or roofline_s)


def check_scaler(
    scaler: Scaler,
    calls: Sequence[Call],
    devices: Sequence[Device],
    excused: Excuses = NO_EXCUSES,
) -> None:
    """Hold a scaler to every promise, for these measured calls between all pairs of these GPUs.

    Args:
        scaler: The scaler to check.
        calls: Calls with the kernels that were measured.
        devices: GPUs, each of which is origin and target in turn.
        excused: Promises that it does not keep, with the reasons.
    """
    for origin in devices:
        for target in devices:
            for promise, check in SCALER_CHECKS.items():
                if promise not in excused:
                    check(scaler, calls, origin, target)


# Predictors.


def check_range(predictor: Predictor, ops: Sequence[Op], device: Device) -> None:
    """`Promise.RANGE`: every answer is None or a positive, finite time within its range."""
    for op in ops:
        _check_estimate(predictor.predict(op, device), f"{op} on {device.id}")


def check_bound(
    predictor: Predictor, ops: Sequence[Op], device: Device, least_s: LowerBound | None = None
) -> None:
    """`Promise.BOUND`: no time, and no low end of a range, is below what physics allows."""
    for op in ops:
        answer, least = predictor.predict(op, device), (least_s or roofline_s)(op, device)
        if answer is not None and least is not None:
            assert answer.low_s >= least * (1 - ROUNDING), _broken(
                Promise.BOUND, f"{op} on {device.id}: {answer} is below {least} s"
            )


def check_repeatable(predictor: Predictor, ops: Sequence[Op], device: Device) -> None:
    """`Promise.REPEATABLE`: equal ops on equal GPUs get equal answers."""
    for op in ops:
        first = predictor.predict(op, device)
        second = predictor.predict(dataclasses.replace(op), dataclasses.replace(device))
        assert first == second, _broken(
            Promise.REPEATABLE, f"{op} on {device.id}: {first}, then {second}"
        )


def check_unchanged(predictor: Predictor, ops: Sequence[Op], device: Device) -> None:
    """`Promise.UNCHANGED`: ops and GPU are the same after the question as before it."""
    before = copy.deepcopy((list(ops), device))
    for op in ops:
        predictor.predict(op, device)
    predictor.predict_all(ops, device)
    assert (list(ops), device) == before, _broken(Promise.UNCHANGED, f"{ops} on {device.id}")


def check_better_gpu(
    predictor: Predictor,
    ops: Sequence[Op],
    device: Device,
    gains: Mapping[str, float] | None = None,
) -> None:
    """`Promise.BETTER_GPU`: no op is slower when some rates of the GPU grow.

    Args:
        predictor: The predictor to check.
        ops: Ops to ask for.
        device: The GPU that is made better.
        gains: The factor, 1 or more, of each rate; by default each rate alone is doubled.
    """
    for factors in [gains] if gains is not None else [{rate: 2.0} for rate in RATES]:
        _check_not_slower(
            Promise.BETTER_GPU, predictor, ops, device, with_rates(device, factors), str(factors)
        )


def check_faster_gpu(
    predictor: Predictor, ops: Sequence[Op], device: Device, factor: float = 2.0
) -> None:
    """`Promise.FASTER_GPU`: no op is slower when all rates of the GPU grow by one factor."""
    _check_not_slower(
        Promise.FASTER_GPU, predictor, ops, device, faster(device, factor), f"all x {factor}"
    )


def check_batch(predictor: Predictor, ops: Sequence[Op], device: Device) -> None:
    """`Promise.BATCH`: `predict_all` and `ratios` answer as if asked for one op at a time."""
    together = list(predictor.predict_all(ops, device))
    alone = [predictor.predict(op, device) for op in ops]
    assert together == alone, _broken(Promise.BATCH, f"on {device.id}: {together}, not {alone}")
    other = faster(device, 1.5)
    ratios = list(predictor.ratios(ops, device, other))
    one_by_one = [predictor.ratios([op], device, other)[0] for op in ops]
    assert ratios == one_by_one, _broken(
        Promise.BATCH, f"ratios on {device.id}: {ratios}, not {one_by_one}"
    )
    assert all(ratio is None or 0 < ratio < math.inf for ratio in ratios), _broken(
        Promise.RANGE, f"ratios on {device.id}: {ratios}"
    )


def check_ratios(predictor: Predictor, ops: Sequence[Op], device: Device) -> None:
    """`Promise.RATIOS`: `ratios` are quotients of what `predict` answers."""
    for other in (device, faster(device, 1.5)):
        quotients = []
        for op in ops:
            here, there = predictor.predict(op, device), predictor.predict(op, other)
            known = here is not None and there is not None
            quotients.append(there.seconds / here.seconds if known else None)  # type: ignore[union-attr]
        ratios = list(predictor.ratios(ops, device, other))
        assert ratios == quotients, _broken(
            Promise.RATIOS, f"on {device.id}: {ratios}, not {quotients}"
        )


PREDICTOR_CHECKS: Mapping[Promise, Callable[[Predictor, Sequence[Op], Device], None]] = {
    Promise.RANGE: check_range,
    Promise.REPEATABLE: check_repeatable,
    Promise.UNCHANGED: check_unchanged,
    Promise.BETTER_GPU: check_better_gpu,
    Promise.FASTER_GPU: check_faster_gpu,
    Promise.BATCH: check_batch,
    Promise.RATIOS: check_ratios,
}


# Scalers.


def check_scaled_range(
    scaler: Scaler, calls: Sequence[Call], origin: Device, target: Device
) -> None:
    """`Promise.RANGE`: every answer is None or a positive, finite time within its range."""
    for call in calls:
        place = f"{call} from {origin.id} to {target.id}"
        _check_estimate(scaler.scale_call(call, origin, target), place)


def check_scaled_repeatable(
    scaler: Scaler, calls: Sequence[Call], origin: Device, target: Device
) -> None:
    """`Promise.REPEATABLE`: equal calls between equal GPUs get equal answers."""
    for call in calls:
        first = scaler.scale_call(call, origin, target)
        again = [dataclasses.replace(gpu) for gpu in (origin, target)]
        second = scaler.scale_call(dataclasses.replace(call), *again)
        assert first == second, _broken(
            Promise.REPEATABLE, f"{call} from {origin.id} to {target.id}: {first}, then {second}"
        )


def check_scaled_unchanged(
    scaler: Scaler, calls: Sequence[Call], origin: Device, target: Device
) -> None:
    """`Promise.UNCHANGED`: calls and GPUs are the same after the question as before it."""
    before = copy.deepcopy((list(calls), origin, target))
    for call in calls:
        scaler.scale_call(call, origin, target)
    scaler.scale_all(calls, origin, target)
    assert (list(calls), origin, target) == before, _broken(
        Promise.UNCHANGED, f"from {origin.id} to {target.id}"
    )


def check_better_target(
    scaler: Scaler,
    calls: Sequence[Call],
    origin: Device,
    target: Device,
    gains: Mapping[str, float] | None = None,
) -> None:
    """`Promise.BETTER_GPU`: no call is slower when some rates of the target grow."""
    for factors in [gains] if gains is not None else [{rate: 2.0} for rate in RATES]:
        better = with_rates(target, factors)
        _check_scaled_order(Promise.BETTER_GPU, scaler, calls, origin, (target, better))


def check_faster_target(
    scaler: Scaler, calls: Sequence[Call], origin: Device, target: Device, factor: float = 2.0
) -> None:
    """`Promise.FASTER_GPU`: no call is slower when all rates of the target grow by one factor."""
    better = faster(target, factor)
    _check_scaled_order(Promise.FASTER_GPU, scaler, calls, origin, (target, better))


def check_own_gpu(scaler: Scaler, calls: Sequence[Call], origin: Device, target: Device) -> None:
    """`Promise.OWN_GPU`: scaled from a GPU to itself, a call takes what was measured, exactly."""
    for gpu in (origin, target):
        for call in calls:
            measured_s = sum(kernel.seconds for kernel in call.kernels)
            answer = scaler.scale_call(call, gpu, gpu)
            expected = (measured_s,) * 3 if measured_s else None
            times = answer and (answer.low_s, answer.seconds, answer.high_s)
            assert times == expected, _broken(
                Promise.OWN_GPU, f"{call} on {gpu.id}: {answer}, not {measured_s} s"
            )


def check_scaled_batch(
    scaler: Scaler, calls: Sequence[Call], origin: Device, target: Device
) -> None:
    """`Promise.BATCH`: `scale_all` answers as `scale_call` does for each call."""
    together = list(scaler.scale_all(calls, origin, target))
    alone = [scaler.scale_call(call, origin, target) for call in calls]
    assert together == alone, _broken(
        Promise.BATCH, f"from {origin.id} to {target.id}: {together}, not {alone}"
    )


SCALER_CHECKS: Mapping[Promise, Callable[[Scaler, Sequence[Call], Device, Device], None]] = {
    Promise.RANGE: check_scaled_range,
    Promise.REPEATABLE: check_scaled_repeatable,
    Promise.UNCHANGED: check_scaled_unchanged,
    Promise.BETTER_GPU: check_better_target,
    Promise.FASTER_GPU: check_faster_target,
    Promise.OWN_GPU: check_own_gpu,
    Promise.BATCH: check_scaled_batch,
}


# GPUs that are better than others.


def with_rates(device: Device, factors: Mapping[str, float]) -> Device:
    """The GPU with some of the rates of its data sheet multiplied, as far as it has them."""
    known = {name: getattr(device, name) for name in factors if getattr(device, name) is not None}
    return dataclasses.replace(device, **{name: known[name] * factors[name] for name in known})


def faster(device: Device, factor: float) -> Device:
    """The GPU with all rates multiplied by one factor, both nominal and measured ones."""
    measured = {
        name: dataclasses.replace(fact, value=fact.value * factor) if name in RATES else fact
        for name, fact in device.measured.items()
    }
    nominal = with_rates(device, dict.fromkeys(RATES, factor))
    return dataclasses.replace(nominal, measured=measured)


def roofline_s(op: Op, device: Device) -> float | None:
    """The roofline of an op on a GPU, in seconds; None without formula or facts."""
    least = bound(op, device)
    return None if least is None else least.seconds


def _check_estimate(answer: Estimate | None, place: str) -> None:
    if answer is not None:
        assert isinstance(answer, Estimate), _broken(Promise.RANGE, f"{place}: {answer!r}")
        fine = 0 < answer.low_s <= answer.seconds <= answer.high_s < math.inf
        assert fine, _broken(Promise.RANGE, f"{place}: {answer}")
        assert answer.source, _broken(Promise.RANGE, f"{place}: {answer}")


def _check_not_slower(
    promise: Promise,
    predictor: Predictor,
    ops: Sequence[Op],
    device: Device,
    better: Device,
    change: str,
) -> None:
    for op in ops:
        before, after = predictor.predict(op, device), predictor.predict(op, better)
        _check_order(promise, before, after, f"{op} on {device.id}, {change}")


def _check_scaled_order(
    promise: Promise,
    scaler: Scaler,
    calls: Sequence[Call],
    origin: Device,
    targets: tuple[Device, Device],
) -> None:
    for call in calls:
        before, after = (scaler.scale_call(call, origin, target) for target in targets)
        # On the origin itself every call has its measured time, on other GPUs some have none.
        if after is not None or targets[0] != origin:
            changes = [
                f"{rate} x {getattr(targets[1], rate) / getattr(targets[0], rate)}"
                for rate in RATES
                if getattr(targets[0], rate) != getattr(targets[1], rate)
            ]
            place = f"{call} from {origin.id} to {targets[0].id}, {', '.join(changes)}"
            _check_order(promise, before, after, place)


def _check_order(
    promise: Promise, before: Estimate | None, after: Estimate | None, place: str
) -> None:
    """Both answer or neither does, and the second is not slower."""
    assert (before is None) == (after is None), _broken(promise, f"{place}: {before}, {after}")
    if before is not None and after is not None:
        fine = after.seconds <= before.seconds * (1 + ROUNDING)
        assert fine, _broken(promise, f"{place}: {before.seconds} s, then {after.seconds} s")


def _broken(promise: Promise, case: str) -> str:
    return f'broken: "{promise.value}": {case}'
