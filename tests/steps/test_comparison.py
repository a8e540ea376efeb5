"""Two predicted steps side by side: which figures and parts changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import call, mm, relu, step, trace, unknown, view

import wavecast
from wavecast.analysis.comparison import StepComparison, compare, fingerprint_of, summary_of
from wavecast.traces.step import Phase, Trace

BIG = 2048


def compared(before: Trace, after: Trace) -> StepComparison:
    old, new = (wavecast.predict(each, "l4", host="reference") for each in (before, after))
    return compare(old, new)


def test_a_step_equals_itself() -> None:
    change = compared(step(), step())
    assert (change.time_ratio, change.memory_ratio) == (1, 1)
    assert change.is_same_step
    assert (change.ops, change.kinds, change.types, change.modules) == ((), (), (), ())
    assert change.remarks == (
        "both steps run the same ops, with the same shapes and in the same order",
    )


def test_a_wider_layer_shows_in_time_op_and_module() -> None:
    before = trace(call(mm(BIG, BIG, BIG), module="net.0"), call(mm(BIG, BIG, BIG), module="net.1"))
    after = trace(
        call(mm(BIG, BIG, BIG), module="net.0"), call(mm(BIG, BIG, 2 * BIG), module="net.1")
    )
    change = compared(before, after)
    assert change.time_ratio == pytest.approx(1.5, rel=0.2)
    [op], [module] = change.ops, change.modules
    assert (op.name, op.calls_before, op.calls_after) == ("aten.mm", 2, 2)
    assert op.delta_s > 0
    assert module.name == "net.1"
    assert module.delta_s == pytest.approx(op.delta_s)
    assert change.memory_ratio is None  # these traces have no allocations
    assert not change.is_same_step


def test_ops_are_added_and_gone() -> None:
    change = compared(trace(call(mm(BIG, BIG, BIG))), trace(call(relu(BIG, BIG))))
    added, gone = sorted(change.ops, key=lambda part: part.is_gone)
    assert (added.name, added.is_added, added.is_gone) == ("aten.relu", True, False)
    assert (gone.name, gone.is_added, gone.is_gone) == ("aten.mm", False, True)
    assert {part.name for part in change.kinds} == {"matmul", "elementwise"}


def test_another_data_type_is_named() -> None:
    change = compared(
        trace(call(mm(BIG, BIG, BIG, "bfloat16"))), trace(call(mm(BIG, BIG, BIG, "float32")))
    )
    assert {part.name for part in change.types} == {"bfloat16", "float32"}
    assert "float32 takes 100% of the GPU time, before 0%" in change.remarks


def test_waits_of_the_host_are_counted() -> None:
    before = trace(call(mm()), call(relu(64, 64)))
    after = trace(call(mm()), call(relu(64, 64), syncs=True))
    change = compared(before, after)
    assert (change.before.syncs, change.after.syncs) == (0, 1)
    assert "the host waits for the GPU once in a step, before never" in change.remarks


def test_a_renamed_module_is_no_change_of_the_step() -> None:
    names = {"net.0": "net.first"}
    old = step()
    calls = tuple(replace(each, module=names.get(each.module, each.module)) for each in old)
    change = compared(old, replace(old, calls=calls))
    assert change.is_same_step
    assert change.time_ratio == 1
    [renamed] = change.modules
    assert (renamed.name, renamed.renamed_to) == ("net.0", "net.first")


def test_modules_that_differ_are_not_taken_for_renamed_ones() -> None:
    before = trace(call(mm(BIG, BIG, BIG), module="a"), call(relu(BIG, BIG), module="b"))
    after = trace(call(mm(BIG, BIG, 2 * BIG), module="c"), call(relu(BIG, BIG), module="b"))
    change = compared(before, after)
    assert not [part for part in change.modules if part.renamed_to]
    assert {part.name for part in change.modules} == {"a", "c"}


@pytest.mark.parametrize(
    "other",
    [
        trace(call(mm(64, 64, 65)), call(view(8))),
        trace(call(mm(dtype="bfloat16")), call(view(8))),
        trace(call(mm(), syncs=True), call(view(8))),
        trace(call(mm(), Phase.BACKWARD), call(view(8))),
        trace(call(view(8)), call(mm())),
        trace(call(mm(transposed=True)), call(view(8))),
    ],
    ids=["shape", "type", "wait", "phase", "order", "attribute"],
)
def test_the_fingerprint_sees_what_the_time_depends_on(other: Trace) -> None:
    assert fingerprint_of(other) != fingerprint_of(trace(call(mm()), call(view(8))))


def test_the_fingerprint_does_not_see_names_of_modules_and_notes() -> None:
    named = trace(call(mm(), module="a"), samples=3)
    assert fingerprint_of(named) == fingerprint_of(trace(call(mm(), module="b"), notes=["x"]))


def test_a_summary_has_the_figures_of_its_prediction() -> None:
    prediction = wavecast.predict(step(), "l4", host="reference")
    summary = summary_of(prediction)
    assert (summary.seconds, summary.gpu_s) == (prediction.seconds, prediction.gpu_s)
    assert prediction.memory is not None
    assert summary.needed_bytes == prediction.memory.needed_bytes
    assert summary.throughput == pytest.approx(32 / prediction.seconds)
    assert sum(part.calls for part in summary.ops) == len(step())
    assert sum(part.gpu_s for part in summary.types) == pytest.approx(prediction.gpu_s)
    assert {"weights", "optimizer state"} <= set(summary.memory)


def test_what_is_not_predicted_is_kept() -> None:
    nobody = trace(call(mm(BIG, BIG, BIG)), call(unknown()))
    assert summary_of(wavecast.predict(nobody, "l4")).unpredicted_share > 0
