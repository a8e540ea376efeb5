"""Ranges of steps: how the shipped ones are fitted, and how predictions use them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import call, mm, relu, trace

from lab.places import DOCS
from lab.score.ranged_steps import Score, on_gpu, on_host
from lab.score.ranges import (
    CLASSES,
    LEAST,
    OUTSIDE,
    RangeClass,
    classes_of,
    highest,
    judged,
    reach_of,
    share,
    table,
    to_toml,
)
from wavecast.files import shipped_toml
from wavecast.predictors.base import Familiarity
from wavecast.steps import ranges
from wavecast.steps.ranges import gpu_powers, held, host_factors
from wavecast.steps.request import predict

ratios = st.lists(st.floats(0.2, 5.0), min_size=40, max_size=200)
NARROW = [0.9 + 0.002 * i for i in range(101)]
WIDE = [0.5 + 0.01 * i for i in range(101)]


def steps(
    values: Iterable[float],
    known: str = "unseen",
    source: str = "a",
    chip: str = "x",
    part: str = "gpu",
) -> list[Score]:
    """Steps with these measured over predicted times, whose ops' ranges reach e times as far."""
    logs = [math.log(value) for value in values]
    owner = source.split()[0]
    return [Score(part, known, source, max(-v, 0), max(v, 0), owner, chip) for v in logs]


@given(ratios, st.sampled_from(["gpu", "host"]))
def test_nine_in_ten_lie_in_the_range_that_is_made_of_them(values: list[float], part: str) -> None:
    own = steps(values, part=part)
    inside = sum(reach_of(own).holds(step) for step in own) / len(own)
    assert inside >= 1 - 2 * OUTSIDE
    if len(set(values)) == len(values) >= 100 and min(values) < 0.8 < 1.25 < max(values):
        assert inside < 1


def test_few_values_need_the_largest_of_them() -> None:
    for count, place in ((LEAST, 18), (39, 37), (999, 949)):
        assert highest(range(count), [1.0] * count) == place


def test_of_hosts_every_owner_counts_the_same() -> None:
    few, many = [1.0, 1.5, 1.5, 1.5], [1.0] * 996
    own = [*steps(few, source="a", part="host"), *steps(many, source="b 1", part="host")]
    assert reach_of(own).above == pytest.approx(math.log(1.5))
    assert reach_of(steps(few + many, part="host")).above == 0


def test_a_step_scores_by_what_its_ops_allow() -> None:
    prediction = predict(trace(call(mm(4096, 4096, 4096))), "rtx-3090", host="reference")
    least, most = prediction.gpu_spread
    for ratio, power in ((least, (1.0, 0.0)), (most**2, (0.0, 2.0)), (1.0, (0.0, 0.0))):
        score = on_gpu(prediction, ratio, "unseen", "a", "a")
        assert (score.below, score.above) == pytest.approx(power)


def test_a_host_scores_by_the_factor_that_it_needs() -> None:
    fast, slow = on_host(0.5, "unknown", "a", "a"), on_host(3.0, "unknown", "a", "a")
    assert (fast.below, fast.above) == pytest.approx((math.log(2), 0))
    assert (slow.below, slow.above) == pytest.approx((0, math.log(3)))


# Ranges made apart, and how they are widened.


def test_a_step_is_judged_without_its_source_and_without_its_gpu() -> None:
    narrow = steps(NARROW, source="a", chip="x")
    source = steps(WIDE, source="b infer", chip="y")
    chip = steps(WIDE, source="c", chip="z")
    same = RangeClass([*narrow, *source, *chip, *steps(WIDE, source="b train", chip="z")])
    assert same.apart("b", "z") == reach_of(narrow)  # not b's other half, not c on the same GPU
    assert same.apart("b", "y") == reach_of([*narrow, *chip])
    known = [Score("gpu", "measured", s.set, s.below, s.above, s.owner, "") for s in narrow]
    assert RangeClass([*known, *source]).apart("b", "") == reach_of(known)


def test_a_range_is_widened_until_it_holds_nine_in_ten_made_apart() -> None:
    scores = [
        *steps(NARROW, source="a", chip="x"),
        *steps(NARROW, source="b", chip="y"),
        *steps(WIDE, source="c", chip="z"),
    ]
    classes = classes_of(scores)
    same, verdicts = classes["gpu", "unseen"], list(judged(classes))
    before, after = share(verdicts, "narrow"), share(verdicts)
    assert before is not None
    assert after is not None
    assert before < 0.85
    assert after >= 0.9
    assert same.wider is not None
    assert same.wider > 1
    narrower = [
        apart.widened(same.wider - 0.01).holds(score)
        for score in scores
        if (apart := same.apart(score.owner, score.chip))
    ]
    assert sum(narrower) / len(scores) < 0.9
    nested = [v.nested for v in verdicts if v.set == "c"]  # a and b see nothing to widen
    assert nested == [v.narrow for v in verdicts if v.set == "c"]


def test_a_range_that_holds_enough_is_not_made_narrower() -> None:
    alike = [s for name in "abc" for s in steps(NARROW, source=name, chip=name)]
    assert RangeClass(alike).wider == 1


def test_a_class_has_no_range_if_too_few_steps_can_judge_it() -> None:
    few = [
        *steps(WIDE, "foreign", "a", "x"),
        *steps(NARROW[: LEAST - 1], "foreign", "b", "y"),
    ]
    assert RangeClass(few).wider is None
    assert RangeClass(steps(WIDE)).wider is None  # one source
    enough = steps([1.0] * LEAST, "unseen", "b", "y") + steps([1.0] * LEAST, "unseen", "a", "x")
    classes = classes_of(few + enough)
    tables = tomllib.loads(to_toml(classes, list(judged(classes))))
    assert set(tables["gpu"]) == {"unseen"}


def every_class() -> list[Score]:
    return [
        step
        for part, known in CLASSES
        for name, values in (("a", NARROW), ("b", NARROW), ("c train", WIDE))
        for step in steps(values, known, name, name, part)
    ]


def test_the_file_has_the_ends_the_factors_and_what_they_held() -> None:
    classes = classes_of(every_class())
    verdicts = list(judged(classes))
    tables = tomllib.loads(to_toml(classes, verdicts))
    assert [(part, name) for part in ("gpu", "host") for name in tables[part]] == list(CLASSES)
    unseen, same = tables["gpu"]["unseen"], classes["gpu", "unseen"]
    assert unseen["below"] == pytest.approx(same.reach.below, abs=1e-3)
    assert unseen["wider"] == same.wider
    assert unseen["steps"] == 303
    assert unseen["held"] >= 0.9
    assert unseen["least"] < unseen["held"] < unseen["most"] == 1
    unknown = tables["host"]["unknown"]
    assert unknown["low"] == pytest.approx(math.exp(-same.reach.below), abs=3e-3)
    assert unknown["high"] == pytest.approx(math.exp(same.reach.above), abs=3e-3)


def test_the_table_has_a_line_for_each_set_and_all_of_them() -> None:
    verdicts = list(
        judged(classes_of(steps(NARROW, source="a", chip="x") + steps(WIDE, source="b")))
    )
    assert verdicts == []  # two sources on one GPU are not apart
    verdicts = list(judged(classes_of(every_class())))
    lines = list(table([v for v in verdicts if (v.part, v.known) == ("gpu", "unseen")]))
    assert [line.split(" | ")[1] for line in lines[2:]] == ["a", "b", "c train", "**all**"]
    assert lines[2].startswith("| unseen | a | 101 | 100% | 100% |")


# What ships.


def test_the_shipped_ranges_held_nine_in_ten_steps_made_apart() -> None:
    tables = shipped_toml(ranges.FILE)
    for part in ("gpu", "host"):
        for row in tables[part].values():
            assert 0.9 <= row["held"] <= row["most"] <= 1
            assert row["least"] <= row["held"]
            assert row["wider"] >= 1
            assert row["steps"] > LEAST
    for row in tables["host"].values():
        assert row["low"] <= 1 <= row["high"]


def test_the_page_has_the_shares_of_the_shipped_ranges() -> None:
    page = (DOCS / "appendix" / "accuracy-ranges.md").read_text(encoding="utf-8")
    tables = shipped_toml(ranges.FILE)
    for part, title in (("gpu", "keep the GPU busy"), ("host", "wait for the host")):
        lines = page.partition(f"## Steps that {title}\n")[2].partition("\n## ")[0].splitlines()
        cells = [[cell.strip() for cell in line.split("|")] for line in lines]
        rows = [row for row in cells if len(row) > 5 and row[4].endswith("%")]
        for name, row in tables[part].items():
            shown = {cell[2]: cell for cell in rows if cell[1] == name}
            assert int(shown.pop("**all**")[3]) == row["steps"]
            shares = [int(cell[5].rstrip("%")) for cell in shown.values()]
            assert min(shares) == pytest.approx(100 * row["least"], abs=0.6)
            assert max(shares) == pytest.approx(100 * row["most"], abs=0.6)


def test_the_page_repeats_the_ranges() -> None:
    page = (DOCS / "concepts" / "estimates.md").read_text(encoding="utf-8")
    tables = shipped_toml(ranges.FILE)
    for row in tables["gpu"].values():
        share, sets = f"{row['held']:.0%}", f"{row['least']:.0%} to {row['most']:.0%}"
        ends = f"{row['below']:.2f}, {row['above']:.2f} | {row['wider']:.2f}"
        assert f"| {row['steps']} | {ends} | {share} | {sets} |" in page
    for row in tables["host"].values():
        share, sets = f"{row['held']:.0%}", f"{row['least']:.0%} to {row['most']:.0%}"
        ends = f"{row['low']:.2f} to {row['high']:.2f} | {row['wider']:.2f}"
        assert f"| {row['steps']} | {ends} | {share} | {sets} |" in page
    other = (DOCS / "concepts" / "timeline.md").read_text(encoding="utf-8")
    for known in (True, False):
        factors = host_factors(Familiarity.MEASURED, known=known)
        assert factors is not None
        assert f"{factors.low:.2f} to {factors.high:.2f} times" in other


def test_the_range_is_the_one_of_what_is_known_of_the_gpu() -> None:
    step = trace(call(mm(8192, 8192, 8192)))
    for gpu, known in (("h200-sxm", "measured"), ("a40", "partly"), ("rtx-3090", "unseen")):
        prediction = predict(step, gpu, host="reference")
        powers = gpu_powers(Familiarity(known))
        assert powers is not None
        least, most = prediction.gpu_spread
        assert prediction.familiarity == known
        assert prediction.low_s == pytest.approx(prediction.seconds * least**powers.below, rel=0.01)
        assert prediction.high_s == pytest.approx(prediction.seconds * most**powers.above, rel=0.01)


def test_the_less_is_known_the_wider_the_range() -> None:
    """The width of the whole range counts: its parts above and below alone may be narrower."""
    least, most = predict(trace(call(mm(8192, 8192, 8192))), "rtx-3090").gpu_spread
    powers = [gpu_powers(known) for known in Familiarity]
    widths = [p.above * math.log(most) - p.below * math.log(least) for p in powers if p]
    assert widths == sorted(widths)
    known, unknown = (host_factors(Familiarity.UNSEEN, known=k) for k in (True, False))
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
