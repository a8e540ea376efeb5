"""Profiles fit every terminal, and the names of ops stay readable."""

from __future__ import annotations

import pytest
from made import step
from shell import WIDTHS, shown

from wavecast.analysis.profile import profile_predicted
from wavecast.report.results import profiles as report
from wavecast.report.results import profiles as traced
from wavecast.steps.request import predict
from wavecast.traces.step import Call, Kernel, Measurement, Op, Phase, Trace


@pytest.mark.parametrize("width", WIDTHS)
def test_names_of_ops_are_on_one_line_at_every_width(width: int) -> None:
    profiles = [profile_predicted("step", predict(step(), gpu)) for gpu in ("t4", "l4")]
    out = shown(report.profiles("step", profiles, width), width)
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width
    assert "aten._to_copy " in out
    assert "host: " in out


def test_a_measured_step_begins_with_what_it_shows() -> None:
    """A long kernel of an extension, and a step that is longer than the median one."""
    name = "void torch::autograd::CppNode<MyLookup>(int)"
    kernels = (Kernel(name, 0.012),)
    ran = Call(Op("CppNode<MyLookup>", (), (), ()), Phase.FORWARD, kernels=kernels)
    measured = Measurement("Tesla V100-SXM2-16GB", seconds=0.01, gpu_s=0.012, repeats=3)
    out = shown(traced.measured_step("step", Trace((ran,), measurement=measured)), 100)
    first = out.splitlines()[2]
    assert first.startswith("MyLookup takes 100% of the GPU's time")
    assert "100% of the iteration; this step was longer than the median one" in out
    unknown = Trace((ran,), measurement=Measurement("a GPU"))
    assert "takes 100%" not in shown(traced.measured_step("step", unknown), 100)
