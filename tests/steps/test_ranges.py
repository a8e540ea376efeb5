"""Ranges of steps: how the shipped ones are fitted, and how predictions use them."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import call, mm, trace

from lab.places import DOCS
from lab.score.ranges import (
    GPU_CLASSES,
    HOST_CLASSES,
    OUTSIDE,
    Score,
    ends,
    highest,
    is_within,
    on_gpu,
    on_host,
    table,
    to_toml,
)
from wavecast.files import shipped_toml
from wavecast.steps import ranges
from wavecast.steps.prediction import predict
from wavecast.steps.ranges import gpu_powers, host_factors

ratios = st.lists(st.floats(0.2, 5.0), min_size=40, max_size=200)


def steps(part: str, values: list[float], known: str = "", source: str = "a") -> list[Score]:
    if part == "host":
        return [on_host(value, known, source) for value in values]
    return [Score(part, known, source, max(-v, 0.0), max(v, 0.0)) for v in map(math.log, values)]


@given(ratios, st.sampled_from(["gpu", "host"]))
def test_nine_in_ten_lie_in_the_range_that_is_made_of_them(values: list[float], part: str) -> None:
    own = steps(part, values)
    share = sum(is_within(step, ends(own)) for step in own) / len(own)
    assert share >= 1 - 2 * OUTSIDE
    if len(set(values)) == len(values) >= 100 and min(values) < 0.8 < 1.25 < max(values):
        assert share < 1


def test_few_values_need_the_largest_of_them() -> None:
    for count, place in ((19, 18), (39, 37), (999, 949)):
        assert highest(range(count), [1.0] * count) == place


def test_of_hosts_every_owner_counts_the_same() -> None:
    few, many = [1.0, 1.5, 1.5, 1.5], [1.0] * 996
    own = [*steps("host", few, "unknown", "a"), *steps("host", many, "unknown", "b 1")]
    assert ends(own) == (1.0, 1.5)
    assert ends(steps("host", few + many)) == (1.0, 1.0)
    fast = [*steps("host", [0.5] * 4, "unknown", "a"), *steps("host", many, "unknown", "b 1")]
    assert ends(fast) == (2.0, 1.0)


def test_a_step_scores_by_what_its_ops_allow() -> None:
    prediction = predict(trace(call(mm(4096, 4096, 4096))), "rtx-3090", host="reference")
    least, most = prediction.gpu_spread
    for ratio, power in ((least, (1.0, 0.0)), (most**2, (0.0, 2.0)), (1.0, (0.0, 0.0))):
        score = on_gpu(prediction, ratio, "unseen", "a")
        assert (score.below, score.above) == pytest.approx(power)


def test_a_source_is_judged_by_the_range_of_the_others() -> None:
    narrow, wide = [0.9 + 0.002 * i for i in range(100)], [0.5 + 0.01 * i for i in range(100)]
    others = [*steps("gpu", narrow, "unseen", "a"), *steps("gpu", wide, "unseen", "b infer")]
    lines = list(table([*others, *steps("gpu", wide, "unseen", "b train")]))
    assert lines[2].endswith("| a | 100 | 100% | 100% |")
    alone = int(lines[3].split("|")[-2].strip(" %"))  # b is judged by a, not by b's other half
    assert 10 < alone < 30
    assert lines[-1].startswith("| gpu | unseen | all | 300 |")


def test_the_file_has_all_classes() -> None:
    scores = [
        *(s for known in GPU_CLASSES for s in steps("gpu", [0.8, 1.1, 1.3], known)),
        *(s for known in HOST_CLASSES for s in steps("host", [0.7, 1.1], known)),
    ]
    tables = tomllib.loads(to_toml(scores))
    assert set(tables["gpu"]) == set(GPU_CLASSES)
    assert set(tables["host"]) == set(HOST_CLASSES)
    assert tables["host"]["known"] == {"low": 0.7, "high": 1.1, "steps": 2}


def test_the_more_is_known_the_narrower_the_range() -> None:
    """The width of the whole range counts: its upper part alone is not narrower for known chips."""
    least, most = predict(trace(call(mm(8192, 8192, 8192))), "rtx-3090").gpu_spread
    known, unseen, foreign = (
        powers.above * math.log(most) - powers.below * math.log(least)
        for powers in (
            gpu_powers("NVIDIA", measured=True),
            gpu_powers("NVIDIA", measured=False),
            gpu_powers("AMD", measured=False),
        )
    )
    assert known < unseen < foreign
    assert host_factors("AMD", known=False).high > host_factors("NVIDIA", known=False).high
    assert host_factors("AMD", known=True) == host_factors("NVIDIA", known=True)


def test_the_chip_whose_ops_we_measured_has_the_narrow_range() -> None:
    step = trace(call(mm(8192, 8192, 8192)))
    for gpu, measured in (("h200-sxm", True), ("rtx-3090", False)):
        prediction = predict(step, gpu, host="reference")
        powers = gpu_powers("NVIDIA", measured=measured)
        least, most = prediction.gpu_spread
        assert prediction.known_chip is measured
        assert prediction.low_s == pytest.approx(prediction.seconds * least**powers.below, rel=0.01)
        assert prediction.high_s == pytest.approx(prediction.seconds * most**powers.above, rel=0.01)


def test_the_page_repeats_the_ranges() -> None:
    page = (DOCS / "concepts" / "estimates.md").read_text(encoding="utf-8")
    tables = shipped_toml(ranges.FILE)
    for row in tables["gpu"].values():
        assert f"| {row['below']:.2f}, {row['above']:.2f} |" in page
    for row in tables["host"].values():
        assert f"| {row['low']:.2f} to {row['high']:.2f} |" in page
    other = (DOCS / "concepts" / "timeline.md").read_text(encoding="utf-8")
    for name in ("known", "unknown"):
        low, high = tables["host"][name]["low"], tables["host"][name]["high"]
        assert f"{low:.2f} to {high:.2f} times" in other
