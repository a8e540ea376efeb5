"""The host's side of compiled steps: what was measured, and the costs that were fitted on it."""

from __future__ import annotations

import pytest

from lab.fit.compiled_host import fit, held, host_s, launches, left_out, read
from lab.measured import compiled
from lab.measured.compiled import FRESH, Timing, profiled, timing, unprofiled
from lab.score.compiled_host import Compared, coverage, table
from wavecast.hardware.hosts import COMPILED, REFERENCE_HOST


@pytest.mark.slow
def test_the_shipped_costs_are_those_of_the_fit() -> None:
    steps = [step for step in read() if not step.is_blind]
    launch, attention, call, per_input = fit(steps) / REFERENCE_HOST.forward_s
    fitted = {
        "dynamo.guards": call,
        "inductor.call": call,
        "input": per_input,
        "launch": launch,
        "attention": attention,
    }
    shipped = {name: COMPILED[name] for name in fitted}  # XLA's call is not fitted on these steps
    assert pytest.approx(fitted, abs=0.06) == shipped


def test_steps_of_families_left_out_lie_in_the_range_of_a_host() -> None:
    steps = read()
    ratios = left_out(steps)
    off = [abs(ratios[step.step] * step.machine - 1) for step in steps]
    assert sum(off) / len(off) < 0.12
    for line in held(steps, ratios):
        inside, _, of = line.rpartition(": ")[2].partition(" of ")
        assert int(inside) >= 0.9 * int(of)


def test_the_blind_steps_are_in_no_fit() -> None:
    steps = read()
    assert any(step.is_blind for step in steps)
    ours = [step for step in steps if not step.is_blind]
    without = left_out(ours)
    with_them = left_out(steps)
    assert {name: with_them[name] for name in without} == without


def test_launches_are_counted_by_who_issues_them() -> None:
    def kernel(name: str, op: str | None, size: int = 8) -> dict[str, object]:
        return {"name": name, "op": [op, [[size, size]], []] if op else None}

    kernels = [
        kernel("triton_0", None),
        kernel("gemm", "aten::mm"),
        kernel("split", "aten::mm"),
        kernel("gemm", "aten::mm", 16),
        kernel("bag", "aten::_embedding_bag_backward"),
        kernel("sort", "aten::_embedding_bag_backward"),
        kernel("bag", "aten::_embedding_bag_backward"),
        kernel("sort", "aten::_embedding_bag_backward"),
        kernel("fprop", "aten::convolution"),
        kernel("dgrad", "aten::convolution_backward"),
        kernel("wgrad", "aten::convolution_backward"),
        kernel("flash", "aten::_scaled_dot_product_flash_attention"),
        kernel("lists", "aten::_foreach_add_"),
    ]
    row = {"compiled": {"kernels": kernels}, "ops": {"triton_0": []}}
    assert launches(row) == (1 + 2 + 2 + 2, 1, 3, 2)


def test_the_hosts_time_is_known_only_where_the_gpu_does_not_hide_it() -> None:
    half = {"wall_s": 4.0, "issued_s": 1.0}
    assert host_s(half, busy_s=1.0) == 2.0  # the mean of both ways to measure it
    assert host_s(half, busy_s=3.9) == 1.0  # issued long before the GPU was done
    assert host_s({"wall_s": 4.0, "issued_s": 3.8}, busy_s=3.9) is None


def test_iterations_after_a_profiler_are_used_only_where_nothing_else_is() -> None:
    both = timing("unet-bf16", "compiled")
    ours, theirs = (rows["unet-bf16"]["compiled"]["wall_s"] for rows in (unprofiled(), profiled()))
    assert both.is_clean
    assert both.seconds == pytest.approx((ours * theirs) ** 0.5)
    eager_s = unprofiled()["unet-bf16"]["eager"]["wall_s"]
    assert timing("unet-bf16", "eager").seconds == pytest.approx(eager_s)
    slowed = timing("efficientnet-tf32", "compiled")
    assert not slowed.is_clean
    assert slowed.seconds == profiled()["efficientnet-tf32"]["compiled"]["wall_s"]
    assert timing("alexnet-fp32", "compiled").is_clean  # its GPU is always busy
    assert set(FRESH) <= set(profiled())
    assert len(compiled.pieces()) > 15


def test_a_table_names_steps_outside_of_their_range() -> None:
    measured = Timing("some-step", "family", "default", 0.010, 0.004, is_clean=True)
    near = Compared(measured, 0.011, 0.012, 0.008, 0.016)
    far = Compared(measured, 0.011, 0.020, 0.012, 0.030)
    assert near.host_error == pytest.approx(0.1)
    lines = list(table([(near, near), (None, far)]))
    assert "| some-step | 10.0 ms | 40% | 11.0 ms | +10% | +10% | +20% |" in lines
    assert lines[-2].endswith("| +100% (outside of its range) |")
    assert coverage("all", [near, far]) == "| all | 2 | 50% |"
