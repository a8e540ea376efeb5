"""What several GPUs cost beyond kernels and collectives."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from parallel_steps import small_gpt2_step

import wavecast
from wavecast import Parallel
from wavecast.hardware.clusters import LinkKind
from wavecast.steps.op_times import OverlapConstants, expected_maximum, shipped_overlap


@pytest.mark.parametrize("count", [2, 4, 16, 200])
def test_the_expected_maximum_is_that_of_normal_values(count: int) -> None:
    draw = random.Random(count)
    largest = fmean(max(draw.gauss(0, 1) for _ in range(count)) for _ in range(4000))
    assert expected_maximum(count) == pytest.approx(largest, abs=0.06)


def test_one_rank_waits_for_nobody_and_more_ranks_wait_longer() -> None:
    constants = OverlapConstants({"nvlink": 0.0, "pcie": 0.0}, 0.01)
    waits = [constants.waiting(ranks) for ranks in (1, 2, 8, 1024, 16_384)]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] < 0.05


def test_cards_and_boards_have_their_own_slowdown() -> None:
    constants = OverlapConstants({"nvlink": 0.25, "pcie": 1.5}, 0.0)
    slowdowns = {link: constants.slowdown_on(link) for link in LinkKind}
    assert slowdowns[LinkKind.NVSWITCH] == slowdowns[LinkKind.NVLINK] == 0.25
    assert slowdowns[LinkKind.BRIDGES] == slowdowns[LinkKind.PCIE] == 1.5


def test_the_shipped_constants_are_in_a_prediction() -> None:
    step = small_gpt2_step()
    alone = wavecast.predict(step, "h100-sxm-80gb", parallel=Parallel())
    many = wavecast.predict(step, "h100-sxm-80gb", parallel=Parallel(data=8))
    assert alone.waiting_s == 0
    share = shipped_overlap().waiting(8)
    assert many.waiting_s == pytest.approx((many.seconds - many.waiting_s) * share)
