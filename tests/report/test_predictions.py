"""Predictions as tables: what they say, and how they fit every terminal."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from made import call, mm, relu, step, tensor, trace, unknown
from shell import WIDTHS, shown

import wavecast
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.predictors.attainable import Roofline
from wavecast.predictors.base import Estimate
from wavecast.report.fields import record
from wavecast.report.results import predictions as report
from wavecast.report.results.caveats import shares
from wavecast.steps.prediction import Prediction, Share
from wavecast.steps.request import predict
from wavecast.traces.step import Op, Trace


def predictions(made: Trace, *gpus: str) -> list[Prediction]:
    return [predict(made, gpu, predictor=Roofline()) for gpu in gpus]


@pytest.mark.parametrize("width", WIDTHS)
def test_predictions_fit_every_terminal_and_keep_gpu_and_step(width: int) -> None:
    gpus = [gpu.id for gpu in wavecast.devices()]
    lines = shown(report.predictions("step", predictions(step(), *gpus), width), width).splitlines()
    assert max(map(len, lines)) <= width
    heading = next(line for line in lines if line.startswith("GPU"))
    assert heading.split()[:2] == ["GPU", "step"]
    assert "…" not in "".join(lines)
    assert {line.split()[0] for line in lines if line} >= set(gpus)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_gpu_that_is_too_small_is_marked_at_every_width(width: int) -> None:
    rows = predictions(step(state_bytes=100 << 20), "t4", "l4", "a100-sxm-80gb")
    out = shown(report.predictions("step", rows, width), width)
    marked = [line for line in out.splitlines() if line.startswith("t4 ")]
    assert "does not fit" in marked[0]
    assert out.count("does not fit") == 1
    assert "the training process needs up to" in " ".join(out.split())
    if width == 200:
        assert "20.4 of 16 GiB, does not fit" in marked[0]


def test_the_memory_is_shown_where_everything_fits() -> None:
    out = shown(report.predictions("step", predictions(step(), "t4", "l4"), 80), 80)
    assert re.search(r"^t4 .*of 16 GiB", out, re.MULTILINE)
    assert "fit" not in out


def test_a_gpu_that_is_too_small_is_not_praised() -> None:
    rows = predictions(step(state_bytes=100 << 20), "t4", "l4")
    out = shown(report.predictions("step", rows, 200))
    t4, l4 = (next(x for x in out.splitlines() if x.startswith(gpu)) for gpu in ("t4", "l4"))
    assert t4.split("fit")[1].split()[0] == "?"  # no throughput
    assert "?" not in l4


@pytest.mark.parametrize("width", WIDTHS)
def test_notes_are_about_columns_that_are_shown(width: int) -> None:
    rows = [predict(step(), gpu) for gpu in ("v100-sxm-16gb", "l4")]
    out = shown(report.predictions("step", rows, width), width)
    heading = next(line for line in out.splitlines() if line.startswith("GPU"))
    for column in ("$/h", "range"):
        assert (column in heading) == (f"\n{column}: " in out)
    assert ("$/h" in heading) == ("(of 8):" in out)


def test_what_is_not_predicted_is_said_once_for_all_gpus() -> None:
    out = shown(report.predictions("step", predictions(step(), "t4", "l4"), 200))
    assert "ops without a prediction, counted as 0 s: mine.secret.default (2 calls)\n" in out


def test_what_only_some_gpus_cannot_do_names_them() -> None:
    eights = tensor(64, 64, dtype="float8_e4m3fn")
    product = Op("aten._scaled_mm", (eights, eights), (tensor(64, 64),))
    rows = predictions(trace(call(mm()), call(product)), "t4", "v100-sxm-32gb", "h100-sxm-80gb")
    out = shown(report.predictions("step", rows, 200))
    said = "ops without a prediction on t4, v100-sxm-32gb, counted as 0 s: aten._scaled_mm (1 call)"
    assert f"{said}\n" in out


def test_a_step_without_any_prediction_is_still_a_table() -> None:
    rows = predictions(trace(call(unknown()), samples=4), "t4")
    out = shown(report.predictions("step", rows, 200))
    assert "ops without a prediction, counted as 0 s" in out
    assert "op times: no predictor could answer" in out


def test_rows_of_another_predictor_are_marked() -> None:
    fp32 = trace(call(mm(64, 64, 64)), samples=4)
    unknown = dataclasses.replace(wavecast.device("gb300"), sm_count=None)
    rows = [predict(fp32, gpu) for gpu in (unknown, "l4", "t4", "h200-sxm")]
    out = shown(report.predictions("step", rows, 200))
    assert (
        "op times: learned (physics and fitted models)\n"
        "[1] op times: attainable (the share of the peak rates that measured ops reach)\n" in out
    )
    marked = [line.split()[0] for line in out.splitlines() if " [1] " in line]
    assert marked == ["gb300"]
    assert "its number of SMs is not known" in out


def test_several_predictors_on_one_gpu_have_their_shares() -> None:
    [row] = predictions(step(), "l4")
    mixed = dataclasses.replace(row, answers=_renamed_first(row.answers, "wave scaling"))
    out = shown(report.predictions("step", [mixed, row], 200))
    assert re.search(r"\nop times: .*wave scaling \d+%.*\n\[1\] op times: roofline \(", out)
    assert [line.startswith("l4 [1]") for line in out.splitlines()].count(True) == 1


def _renamed_first(
    answers: tuple[Estimate | None, ...], source: str
) -> tuple[Estimate | None, ...]:
    first = next(i for i, answer in enumerate(answers) if answer is not None and answer.seconds)
    answer = answers[first]
    assert answer is not None
    renamed = dataclasses.replace(answer, source=source)
    return (*answers[:first], renamed, *answers[first + 1 :])


def predicted_apart_from(made: Trace, *unknown_names: str) -> Prediction:
    """The step on an L4, when nobody can predict the ops of these names."""
    [row] = predictions(made, "l4")
    works = zip(made.arrays.works, row.answers, strict=True)
    kept = tuple(None if call.op.name in unknown_names else answer for call, answer in works)
    return dataclasses.replace(row, answers=kept)


PARTS = trace(call(mm(64, 64, 64)), call(relu(4096)), call(relu(64)), samples=4)
"""A product that moves 48 KiB, and two ReLUs that move 32.5 KiB."""


def test_a_row_says_how_much_of_its_step_was_not_predicted() -> None:
    [whole] = predictions(PARTS, "t4")
    part = predicted_apart_from(PARTS, "aten.relu")
    small = trace(call(mm(256, 256, 256)), call(relu(4096)), samples=4)
    few = predicted_apart_from(small, "aten.relu")
    assert part.unpredicted_shares["bytes"] == pytest.approx(32.5 / 80.5)
    assert few.unpredicted_share == pytest.approx(32 / 800)
    out = shown(report.predictions("step", [whole, few], 200))
    [row] = [line for line in out.splitlines() if line.startswith("l4 ")]
    assert row.endswith("4% of its bytes")
    assert "> " not in row
    assert "not ranked" not in out
    assert not [line for line in out.splitlines() if line.startswith("t4 ") and "bytes" in line]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_that_lacks_a_fifth_of_its_step_is_not_compared(width: int) -> None:
    [whole] = predictions(PARTS, "t4")
    part = predicted_apart_from(PARTS, "aten.relu")
    out = shown(report.predictions("step", [whole, part], width), width)
    [row] = [line for line in out.splitlines() if line.startswith("l4 ")]
    assert re.match(r"l4 +> [\d.]+ us ", row)
    assert "40% of its bytes" in row
    assert "not ranked on l4: the ops without a prediction are more than 20%" in " ".join(
        out.split()
    )
    if width == 200:
        assert row.split()[4] == "?", "no range"
        assert "samples/s" in out
        assert record(part)["comparable"] is False
        assert record(whole)["comparable"] is True


def test_flops_count_as_well_as_bytes() -> None:
    part = predicted_apart_from(PARTS, "aten.mm")
    assert part.unpredicted_shares["FLOPs"] > part.unpredicted_shares["bytes"] > 0.5
    out = shown(report.predictions("step", [part], 200))
    assert "% of its FLOPs" in out


def test_a_step_of_which_nothing_is_known_is_unknown_altogether() -> None:
    [row] = predictions(trace(call(unknown()), samples=4), "t4")
    assert row.unpredicted_share == 1
    assert "100% of its bytes" in shown(report.predictions("step", [row], 200))


def test_without_samples_there_is_no_throughput_but_a_hint() -> None:
    out = shown(report.predictions("step", predictions(step(samples=None), "l4"), 200))
    assert "samples/s" not in out
    assert "samples/$" not in out
    assert "(give --batch)" in out


def test_a_range_says_how_many_measured_steps_lay_in_such_ranges() -> None:
    learned = predict(PARTS, "l4", host="reference")
    known = predict(PARTS, "h200-sxm", host="reference")
    assert learned.held is not None
    assert known.held is not None
    out = shown(report.predictions("s", [learned], 200))
    share, ends = learned.held.share, (learned.held.least, learned.held.most)
    by_set = " to ".join(f"{100 * end:.0f}" for end in ends)
    wanted = f"range: holds {100 * share:.0f}% of measured steps ({by_set}% by set), each judged"
    assert f"{wanted} without its GPU and source\n" in out
    assert ", each judged without its source\n" in shown(report.predictions("s", [known], 200))
    both = shown(report.predictions("s", [known, learned], 200))
    assert "judged without its GPU and source (h200-sxm: without its source)\n" in both


def test_a_usual_host_says_where_its_costs_come_from_and_what_the_range_covers() -> None:
    out = shown(report.predictions("s", [predict(PARTS, "l4", host="desktop")], 300))
    assert "host: desktop (as Intel Core i9-13900K: reference x0.71)\nits costs: those of" in out
    [line] = [line for line in out.splitlines() if line.startswith("range covers hosts that take")]
    assert " times as long as the reference: desktop, workstation, " in line
    assert "dgx-1" not in line
    plain = shown(report.predictions("s", [predict(PARTS, "l4", host="reference")], 300))
    assert "its costs" not in plain


def test_a_range_says_what_it_covers_where_the_host_limits_the_step() -> None:
    waiting = predict(PARTS, "h200-sxm", host="reference")
    assert waiting.bound_by == "host"
    assert waiting.low_s is not None
    assert "range covers hosts that take" in shown(report.predictions("s", [waiting], 300))
    ours = dataclasses.replace(REFERENCE_HOST, known=True)
    calibrated = predict(PARTS, "h200-sxm", host=ours)
    assert "range covers" not in shown(report.predictions("s", [calibrated], 300))


def test_a_range_is_not_printed_where_nothing_calibrated_it() -> None:
    learned, roofline = [predict(step(), "a10", host="reference")], predictions(step(), "t4")
    both = shown(report.predictions("s", learned + roofline, 200))
    [line] = [line for line in both.splitlines() if line.startswith("t4 ")]
    assert " - " not in line
    assert " ? " in line
    assert "no range on t4: no measured steps tell how far off such predictions are\n" in both
    out = shown(report.predictions("s", roofline, 200))
    assert " range " not in out.splitlines()[2]
    assert "no range: no measured steps tell how far off such predictions are\n" in out


def test_notes_of_all_traces_are_shown_and_counted_when_many() -> None:
    notes = [f"upper bound: number {i}" for i in range(8)]
    first = dataclasses.replace(step(), notes=tuple(notes[:4]))
    second = dataclasses.replace(step(), notes=tuple(notes[2:]))
    rows = predictions(first, "l4") + predictions(second, "t4")
    rows += [
        dataclasses.replace(row, notes=("read me",)) for row in predictions(step(), "v100-sxm-16gb")
    ]
    rows += [dataclasses.replace(row, notes=("read me",)) for row in predictions(step(), "k80")]
    out = shown(report.predictions("step", rows, 200))
    assert "note: on v100-sxm-16gb, k80: read me\n" in out
    assert [f"note: {note}\n" in out for note in notes] == [True] * 4 + [False] * 4
    assert "note: and 4 more (--json lists all)" in out


def test_a_breakdown_sums_up_what_it_does_not_list() -> None:
    parts = [Share(f"op{i}", 1, float(100 - i)) for i in range(40)]
    out = shown(shares("by op", parts, sum(part.gpu_s for part in parts), limit=10))
    assert "25 others" not in out
    assert "30 others" in out
    percents = [float(line.split()[-1].rstrip("%")) for line in out.splitlines() if "%" in line]
    assert sum(percents) == pytest.approx(100, abs=0.6)


def test_names_with_brackets_are_shown_as_they_are() -> None:
    out = shown(shares("by module", [Share("net[bold].layers[0]", 1, 1.0)], 1.0))
    assert "net[bold].layers[0]" in out


def test_records_are_plain_data_for_every_gpu() -> None:
    for prediction in predictions(step(), *(gpu.id for gpu in wavecast.devices())):
        data = json.loads(json.dumps(record(prediction), allow_nan=False))
        assert data["gpu"] == prediction.device.id
        assert (data["usd_per_hour"] is None) == (data["price"] is None)
