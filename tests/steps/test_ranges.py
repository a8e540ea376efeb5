"""Ranges of steps: how the shipped ones are fitted, and how predictions use them."""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace

import pytest
from made import call, mm, relu, trace

from lab.measured import campaigns
from lab.places import DOCS
from lab.score import scaled_ranges
from lab.score.range_widths import (
    CLASSES,
    HELD,
    PARTS,
    JudgedRange,
    Widths,
    WidthTree,
    fit,
    judged,
    needed,
    share,
    widening,
)
from lab.score.range_widths import given as given_width
from lab.score.ranged_steps import OffStep
from lab.score.ranges import LEAST, Ranges, report, widths_table
from wavecast.files import shipped_toml
from wavecast.hardware.devices import device
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.ops.attention import ATTENDED, LEAST_ATTENDED
from wavecast.predictors.base import Familiarity
from wavecast.predictors.habitat import Habitat
from wavecast.predictors.wave import WaveScaling
from wavecast.steps import ranges
from wavecast.steps.ranges import (
    Makeup,
    ScaledTo,
    covered_hosts,
    gpu_factors,
    held,
    host_factors,
    scaling_of,
)
from wavecast.steps.request import predict
from wavecast.traces.step import Op, TensorSpec

MATMUL = Makeup(matmul=1, convolution=0, recurrent=0, memory=0)
CONVOLUTION = replace(MATMUL, matmul=0, convolution=1)
NARROW = [math.log(0.9 + 0.002 * i) for i in range(101)]
WIDE = [math.log(0.5 + 0.01 * i) for i in range(101)]


def steps(
    offs: Iterable[float],
    known: str = "unseen",
    source: str = "a",
    chip: str = "x",
    part: str = "gpu",
    makeup: Makeup = MATMUL,
) -> list[OffStep]:
    """Steps whose measured times are so far, in logarithms, from their predicted times."""
    owner = source.split()[0]
    return [
        OffStep(part, known, source, off, makeup, owner, chip, (1 / math.e, math.e)) for off in offs
    ]


# The interval score, and the widths that minimise it.


def test_a_range_covers_the_hosts_around_the_one_that_it_assumes() -> None:
    around = covered_hosts(REFERENCE_HOST)
    slower = covered_hosts(REFERENCE_HOST.scaled(2))
    assert around is not None
    assert slower is not None
    factors = host_factors(known=False)
    assert factors is not None
    assert (around.low, around.high) == pytest.approx((factors.low, factors.high))
    assert slower.low == pytest.approx(2 * around.low)
    assert "cloud-vm" in around.names
    assert "cloud-vm" not in slower.names
    assert "dgx-1" in slower.names


def test_a_calibrated_host_and_none_at_all_cover_no_others() -> None:
    assert covered_hosts(replace(REFERENCE_HOST, known=True)) is None
    assert covered_hosts(REFERENCE_HOST.scaled(0)) is None
    assert covered_hosts(REFERENCE_HOST.graphed()) is None


def test_the_widths_are_the_quantiles_of_either_side() -> None:
    offs = [0.4 * i / 400 if i > 0 else 0.1 * i / 400 for i in range(-400, 401)]
    widths = fit(steps(offs))
    below, above = widths.reach(steps([0.0])[0])
    assert below == pytest.approx(0.09, abs=0.01)
    assert above == pytest.approx(0.36, abs=0.02)


def test_each_kind_has_a_width_of_its_own() -> None:
    draw = random.Random(1)
    own = [
        *steps(draw.gauss(0, 0.05) for _ in range(9000)),
        *steps((draw.gauss(0, 0.25) for _ in range(9000)), makeup=CONVOLUTION),
    ]
    widths = fit(own)
    matmul, convolution = (widths.reach(step) for step in (own[0], own[-1]))
    assert sum(matmul) < 0.25 < 0.6 < sum(convolution)
    half = replace(MATMUL, matmul=0.5, convolution=0.5)
    between = widths.reach(replace(own[0], makeup=half))
    assert sum(between) == pytest.approx((sum(matmul) + sum(convolution)) / 2)


def test_few_steps_stay_near_their_parent() -> None:
    parent = Widths((0.3,) * 5, (0.3,) * 5)
    few, many = (sum(fit(steps(NARROW * n), parent).reach(steps([0])[0])) for n in (1, 100))
    assert many < few <= 0.61
    assert many == pytest.approx(0.19, abs=0.02)


def test_other_vendors_have_one_width_for_all_kinds() -> None:
    own = [*steps(NARROW, "foreign", "b", "y"), *steps(WIDE, "unseen", makeup=CONVOLUTION)]
    unseen, foreign = (WidthTree(own).widths("gpu", known) for known in ("unseen", "foreign"))
    assert len(set(foreign.above[:-1])) == len(set(foreign.below[:-1])) == 1
    assert len(set(unseen.above[:-1])) > 1


def test_old_software_has_a_width_that_others_do_not_get() -> None:
    draw = random.Random(2)
    new = steps(draw.gauss(0, 0.05) for _ in range(300))
    old = [replace(step, old=True, off=4 * step.off) for step in new]
    alone, both = (sum(fit(some).reach(new[0])) for some in (new, [*new, *old]))
    assert both == pytest.approx(alone, rel=0.3)


# Ranges made apart, and how they are widened.


def test_a_step_is_judged_without_its_source_and_without_its_gpu() -> None:
    narrow = steps(NARROW, source="a", chip="x")
    wide = [*steps(WIDE, source="b infer", chip="y"), *steps(WIDE, source="c", chip="z")]
    every = [*narrow, *wide, *steps(WIDE, source="b train", chip="z")]
    [of_b] = [row for row in judged(every) if row.step is every[-1]]
    assert of_b.below == pytest.approx(
        WidthTree(narrow).widths("gpu", "unseen").reach(every[-1])[0]
    )
    known = [replace(step, known="measured", chip="") for step in narrow]
    assert not known[0].is_apart("a", "")
    assert known[0].is_apart("b", "")


def test_a_class_is_widened_until_it_holds_enough_made_apart() -> None:
    every = [
        *steps(NARROW, source="a", chip="x"),
        *steps(NARROW, source="b", chip="y"),
        *steps(WIDE, source="c", chip="z"),
    ]
    apart = judged(every)
    factor = widening(apart)
    assert factor > 1
    assert share(apart) < 0.85
    assert share([row.times(factor) for row in apart]) >= HELD > 0.9
    assert share([row.times(factor - 0.01) for row in apart]) < HELD


def test_ranges_that_hold_more_are_made_narrower() -> None:
    every = [JudgedRange(step, 1.0, 1.0, 1.0) for step in steps(NARROW)]
    assert widening(every) == 0.5  # not by more than that


def test_the_needed_width_holds_nine_in_ten() -> None:
    every = [JudgedRange(step, 1.0, 0.2, 0.2) for step in steps(i / 100 for i in range(-10, 11))]
    assert given_width(every) == pytest.approx(math.exp(0.4))
    assert needed(every) == pytest.approx(math.exp(0.2), rel=0.02)


def every_class() -> list[OffStep]:
    return [
        step
        for part, known in CLASSES
        for name, offs in (("a", NARROW), ("b", NARROW), ("c train", WIDE))
        for step in steps(offs[::4], known, name, name, part)
    ]


def test_the_file_has_the_widths_and_what_they_held() -> None:
    fitted = Ranges.of(every_class())
    tables = tomllib.loads(fitted.to_toml())
    assert [(part, name) for part in PARTS for name in tables[part]] == list(CLASSES)
    unseen = tables["gpu"]["unseen"]
    below = fitted.widths("gpu", "unseen").below
    assert unseen["below"]["matmul"] == pytest.approx(below[0], abs=1e-3)
    assert list(unseen["below"]) == ["matmul", "convolution", "recurrent", "memory"]
    assert unseen["steps"] == 78
    assert unseen["least"] < unseen["held"] <= unseen["most"] == 1
    assert tables["host"]["unknown"]["below"] > 0
    assert f"| {unseen['steps']} | {unseen['held']:.0%} |" in widths_table(fitted)


def test_the_tables_have_every_class_and_set() -> None:
    shown = report(Ranges.of(every_class()).judged)
    lines = [line for line in shown.splitlines() if line.startswith("| unseen | a | 26 | 100%")]
    assert lines[0].count("|") == 7
    assert any(line.startswith("| foreign | **all** | 78 |") for line in shown.splitlines())


def test_a_class_needs_enough_steps() -> None:
    enough = [step for step in every_class() if step.known in ("unseen", "known")]
    few = steps(WIDE[: LEAST - 1], "foreign", "d", "y")
    fitted = Ranges.of([*enough, *few])
    assert set(fitted.wider) == {("gpu", "unseen"), ("host", "known")}
    kept, shipped = tomllib.loads(fitted.to_toml()), shipped_toml(ranges.FILE)
    assert kept["gpu"]["measured"] == shipped["gpu"]["measured"]
    assert kept["gpu"]["unseen"] != shipped["gpu"]["unseen"]
    alone = steps(WIDE, "known", part="host")  # one source, which nothing can judge
    assert judged(alone) == []


# What ships.


def test_the_shipped_ranges_held_nine_in_ten_steps_made_apart() -> None:
    tables = shipped_toml(ranges.FILE)
    for part in ("gpu", "host"):
        for row in tables[part].values():
            assert 0.88 <= row["held"] <= 1
            assert row["least"] <= row["held"] <= row["most"]


def test_the_page_has_the_shipped_classes() -> None:
    page = (DOCS / "appendix" / "accuracy-ranges.md").read_text(encoding="utf-8")
    tables = shipped_toml(ranges.FILE)
    for part, title in (("gpu", "keep the GPU busy"), ("host", "wait for the host")):
        text = page.partition(f"## Steps that {title}\n")[2].partition("\n## ")[0]
        for name, row in tables[part].items() if text else ():
            shown = re.search(
                rf"^\| {name} \| \*\*all\*\* \| {row['steps']} \| (\d+)% \|", text, re.M
            )
            assert shown is not None, name
            assert int(shown[1]) == pytest.approx(100 * row["held"], abs=0.56)  # of three digits


def test_the_page_repeats_the_widths() -> None:
    page = (DOCS / "concepts" / "estimates.md").read_text(encoding="utf-8")
    for name, row in shipped_toml(ranges.FILE)["gpu"].items():
        shown = re.search(rf"^\| GPU: {name} \| -([\d.]+) \+([\d.]+) \|", page, re.M)
        assert shown is not None, name
        widths = (row["below"]["matmul"], row["above"]["matmul"])
        assert tuple(map(float, shown.groups())) == pytest.approx(widths, abs=0.0056)
    other = (DOCS / "concepts" / "timeline.md").read_text(encoding="utf-8")
    for known in (True, False):
        factors = host_factors(known=known)
        assert factors is not None
        assert f"{factors.low:.2f} to {factors.high:.2f} times" in other


def test_the_makeup_is_what_the_gpu_time_is_made_of() -> None:
    step = predict(trace(call(mm(4096, 4096, 4096)), call(relu(1 << 24))), "rtx-3090")
    shares = {part.name: part.gpu_s / step.gpu_s for part in step.by_op()}
    assert step.makeup.matmul == pytest.approx(shares["aten.mm"])
    assert step.makeup.memory == pytest.approx(shares["aten.relu"])
    assert sum(step.makeup.shares) == pytest.approx(1)


def test_the_range_is_the_one_of_what_is_known_of_the_gpu() -> None:
    step = trace(call(mm(8192, 8192, 8192)))
    for gpu, known in (("h200-sxm", "measured"), ("a40", "partly"), ("rtx-3090", "unseen")):
        prediction = predict(step, gpu, host="reference")
        assert prediction.familiarity == known
        ends = gpu_factors(Familiarity(known), prediction.makeup)
        assert ends is not None
        assert ends.low < 1 < ends.high
        assert prediction.low_s == pytest.approx(prediction.seconds * ends.low, rel=0.01)
        assert prediction.high_s == pytest.approx(prediction.seconds * ends.high, rel=0.01)


def test_the_range_reaches_down_to_the_least_that_a_mask_may_leave() -> None:
    matrix = TensorSpec((1, 16, 8192, 128), "bfloat16")
    known, unsure = (
        trace(
            call(
                Op("flex_attention", (matrix,) * 3, (matrix,), ((ATTENDED, 8192**2 // 2), *fewest)),
            )
        )
        for fewest in ((), ((LEAST_ATTENDED, 8192**2 // 16),))
    )
    sure, wide = (predict(step, "h200-sxm", host="reference") for step in (known, unsure))
    assert wide.seconds == sure.seconds
    assert wide.high_s == sure.high_s
    assert sure.low_s is not None
    assert wide.low_s == pytest.approx(sure.low_s / 8, rel=0.2)


def test_the_less_is_known_the_wider_the_range() -> None:
    makeup = replace(MATMUL, matmul=0.4, convolution=0.2, memory=0.4)
    ends = [gpu_factors(known, makeup) for known in Familiarity]
    widths = [math.log(spread.high / spread.low) for spread in ends if spread]
    assert widths[0] < widths[-1]
    known, unknown = (host_factors(known=k) for k in (True, False))
    assert known is not None
    assert unknown is not None
    assert known.high / known.low < unknown.high / unknown.low


def test_a_prediction_says_how_many_steps_such_ranges_held() -> None:
    tables = shipped_toml(ranges.FILE)
    unseen = Familiarity.UNSEEN
    busy = predict(trace(call(mm(8192, 8192, 8192))), "rtx-3090", host="reference")
    waits = predict(trace(*[call(relu(8)) for _ in range(100)]), "rtx-3090", host="reference")
    assert (busy.bound_by, waits.bound_by) == ("gpu", "host")
    assert busy.held == held(unseen, known=False, bound_by="gpu")
    assert waits.held == held(unseen, known=False, bound_by="host")
    assert busy.held is not None
    assert busy.held.share == tables["gpu"]["unseen"]["held"]
    both = held(unseen, known=False, bound_by="both")
    rows = (tables["gpu"]["unseen"], tables["host"]["unknown"])
    assert both is not None
    assert both.share == min(row["held"] for row in rows)
    assert predict(trace(call(mm())), "h200-sxm", graphed=True).held is None


# Measured steps, and how they are scaled.


def test_a_step_of_our_gpu_has_a_range_on_others() -> None:
    measured = campaigns.traces("habitat")["resnet50-b32"]
    for gpu in ("a100-sxm-80gb", "h100-sxm-80gb", "l4"):
        prediction = predict(measured, gpu)
        assert prediction.scaling == ScaledTo.OTHER
        assert prediction.bound_by == "gpu"
        assert prediction.low_s is not None
        assert prediction.high_s is not None
        assert prediction.low_s < prediction.seconds < prediction.high_s
        assert prediction.held == held(ScaledTo.OTHER, known=False, bound_by="gpu")


def test_a_step_has_a_narrow_range_on_the_gpu_of_the_measurement() -> None:
    measured = campaigns.traces("habitat")["resnet50-b32"]
    itself, other = predict(measured, "h200-sxm"), predict(measured, "a100-sxm-80gb")
    assert itself.scaling == ScaledTo.SAME
    widths = []
    for prediction in (itself, other):
        assert prediction.low_s is not None
        assert prediction.high_s is not None
        widths.append(math.log(prediction.high_s / prediction.low_s))
    assert widths[0] < 0.1 < widths[1]


def test_one_of_the_gpus_is_as_well_known_as_ours() -> None:
    a100, h100, l4, mi300x = map(device, ("a100-sxm-80gb", "h100-sxm-80gb", "l4", "mi300x"))
    scaler = Habitat.shipped()
    assert scaling_of(scaler, h100, a100) is scaling_of(scaler, a100, h100) is ScaledTo.OTHER
    assert scaling_of(scaler, h100, h100) is ScaledTo.SAME
    for origin, target in ((a100, l4), (a100, a100), (h100, mi300x)):
        assert scaling_of(scaler, origin, target) is None
    assert scaling_of(WaveScaling(), h100, a100) is None


def test_matmuls_without_shapes_have_no_range() -> None:
    measured = campaigns.traces("habitat")["resnet50-b32"]
    calls = tuple(
        replace(measured_call, op=replace(measured_call.op, inputs=(), outputs=()))
        for measured_call in measured.calls
    )
    bare = predict(replace(measured, calls=calls), "a100-sxm-80gb")
    assert bare.scaling == ScaledTo.OTHER
    assert bare.modelled < 0.8
    assert bare.low_s is None


def test_steps_timed_again_are_judged_by_what_they_wait_for() -> None:
    again = list(scaled_ranges.timed_again())
    busy = list(scaled_ranges.same(again))
    inside, count = scaled_ranges.waiting(again)
    assert {step.owner for step in busy} == {"same", "suite-again"}
    assert max(abs(step.off) for step in busy) < 0.05
    assert shipped_toml(ranges.FILE)["scaled"]["same"]["steps"] == len(busy)
    page = (DOCS / "appendix" / "accuracy-ranges.md").read_text(encoding="utf-8")
    assert f"Of {count} steps that wait for the host" in page
    assert f"{inside} lie in the range of a calibrated host" in page


def test_the_pages_have_the_shares_of_scaled_steps() -> None:
    page = (DOCS / "appendix" / "accuracy-ranges.md").read_text(encoding="utf-8")
    widths = (DOCS / "concepts" / "estimates.md").read_text(encoding="utf-8")
    tables = shipped_toml(ranges.FILE)
    for name, row in tables["scaled"].items():
        assert f"| {name} | **all** | {row['steps']} | {row['held']:.0%} |" in page
        below, above = row["below"]["matmul"], row["above"]["matmul"]
        assert f"| scaled: {name} | -{below:.2f} +{above:.2f} |" in widths
