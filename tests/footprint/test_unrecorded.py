"""Memory of measured steps whose weights or optimizer state were not recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

import wavecast
from lab.measured import campaigns
from wavecast.footprint.memory import unrecorded
from wavecast.traces.step import Role


@pytest.mark.parametrize(
    ("campaign", "step", "missing"),
    [
        ("habitat-weights", "dcgan-b64", ()),
        ("habitat-weights", "resnet50-b16", ()),
        ("habitat", "dcgan-b64", ("weights", "optimizer state")),
        ("measured", "resnet50_b32-fp32", ("weights", "optimizer state")),
    ],
)
def test_recordings_say_what_they_lack(campaign: str, step: str, missing: tuple[str, ...]) -> None:
    assert unrecorded(campaigns.traces(campaign)[step]) == missing


def test_what_was_not_recorded_gives_no_verdict_but_one_of_too_little_memory() -> None:
    trace = campaigns.traces("habitat")["resnet50-b64"]
    needed = wavecast.memory(trace, "t4")
    assert needed.fits is None
    assert any("did not record the weights and the optimizer state" in n for n in needed.notes)
    # The part that is known is larger than the whole memory of a small GPU.
    assert wavecast.memory(trace, "gtx-980").fits is False
    assert wavecast.memory(campaigns.traces("habitat-weights")["resnet50-b64"], "t4").fits is True


def test_adam_without_its_state_is_noticed() -> None:
    trace = campaigns.traces("habitat-weights")["dcgan-b64"]
    kept = tuple(a for a in trace.allocations if a.role is not Role.OPTIMIZER_STATE)
    assert unrecorded(replace(trace, allocations=kept)) == ("optimizer state",)


def test_a_traced_step_has_everything() -> None:
    trace = campaigns.traces("habitat")["dcgan-b64"]
    assert unrecorded(replace(trace, measurement=None)) == ()
