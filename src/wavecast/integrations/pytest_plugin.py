"""A plugin for pytest: tests that fail when a training step becomes slower or larger.

def test_the_step_is_no_slower(wavecast_step):
    wavecast_step.assert_no_slower(make_step, gpu="l4")

The baseline is a file beside the test, which `pytest --wavecast-update` writes. Nothing but pytest
is imported until a test uses the fixture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import wavecast
    from wavecast.analysis.comparison import StepSummary
    from wavecast.campaigns.checks.baseline import Baseline

MakeStep = Callable[[], Callable[[], Any]]
_UPDATE = "--wavecast-update"


def pytest_addoption(parser: Any) -> None:
    """Add the option that writes baselines."""
    group = parser.getgroup("wavecast")
    group.addoption(
        _UPDATE,
        action="store_true",
        help="write the baselines of wavecast_step.assert_no_slower instead of comparing with them",
    )


@pytest.fixture
def wavecast_step(request: Any) -> StepAssertions:
    """Assertions about the predicted time and memory of a training step."""
    return StepAssertions(
        folder=request.path.parent,
        test=f"{request.path.stem}.{request.node.name}",
        update=request.config.getoption(_UPDATE),
    )


class StepAssertions:
    """Assertions about training steps, which are predicted and need no GPU.

    Args:
        folder: where baselines are, if a test names no other place.
        test: the name of the test, under which its steps are kept.
        update: whether baselines are written instead of compared.
    """

    def __init__(self, folder: Path, test: str, *, update: bool = False) -> None:
        self._folder, self._test, self._update = folder, test, update

    def predict(
        self, make_step: MakeStep, gpu: str, *, samples: int | None = None, host: str | None = None
    ) -> wavecast.Prediction:
        """The prediction of a step on a GPU, for assertions of your own.

        Args:
            make_step: builds model, optimizer and inputs as for CUDA, and returns the step.
            gpu: the GPU.
            samples: how many samples a step takes.
            host: the host that issues the step; the reference if None, so that every machine gets
                the same result.
        """
        import wavecast

        trace = wavecast.trace(make_step, gpu=gpu, samples=samples)
        return wavecast.predict(trace, gpu, host=host or "reference")

    def assert_fits(self, make_step: MakeStep, gpu: str) -> None:
        """Fail unless the step fits in the memory of a GPU."""
        step = self.predict(make_step, gpu)
        if step.memory is not None and not step.fits:
            needed, has = (
                size >> 20 for size in (step.memory.needed_bytes, step.device.memory_bytes)
            )
            _fail(f"the step does not fit on {step.device.id}: it needs {needed} MiB of {has} MiB")

    def assert_faster_than(self, make_step: MakeStep, gpu: str, seconds: float) -> None:
        """Fail unless the predicted time of a step is below a number of seconds."""
        step = self.predict(make_step, gpu)
        if not step.seconds < seconds:
            _fail(
                f"the step takes {step.seconds * 1e3:.4g} ms on {step.device.id}; the limit is "
                f"{seconds * 1e3:.4g} ms"
            )

    def assert_no_slower(
        self,
        make_step: MakeStep,
        gpu: str | Sequence[str],
        *,
        baseline: str | os.PathLike[str] | None = None,
        name: str | None = None,
        tolerance: Mapping[str, float | None] | None = None,
    ) -> None:
        """Fail if the step takes more time or memory than its baseline, or waits more often.

        Args:
            make_step: builds model, optimizer and inputs as for CUDA, and returns the step.
            gpu: the GPU, or several.
            baseline: the file of the baseline; `wavecast-baseline.toml` beside the test if None.
            name: the name of the step in the baseline; that of the test if None.
            tolerance: how much figures may change, as in `wavecast.toml`: shares of `time`,
                `memory`, `gpu` and `host`, a number of `waits`; None leaves a figure out.
        """
        from wavecast.campaigns.checks.config import BASELINE

        path = self._folder / (BASELINE if baseline is None else baseline)
        target = name or self._test
        gpus = [gpu] if isinstance(gpu, str) else list(gpu)
        now = self._summaries(make_step, gpus)
        if self._update:
            _write(path, target, now)
        else:
            _compare(path, target, now, tolerance or {})

    def _summaries(self, make_step: MakeStep, gpus: Sequence[str]) -> dict[str, StepSummary]:
        import wavecast
        from wavecast.analysis.comparison import summary_of
        from wavecast.campaigns.checks.baseline import kept

        traces = wavecast.trace(make_step, gpus=gpus)
        steps = [wavecast.predict(traces, gpu, host="reference") for gpu in gpus]
        return {step.device.id: kept(summary_of(step)) for step in steps}


def _fail(message: str) -> None:
    pytest.fail(message, pytrace=False)


def _read(path: Path) -> Baseline | None:
    from wavecast.campaigns.checks.baseline import read_baseline

    return read_baseline(path) if path.exists() else None


def _write(path: Path, target: str, now: dict[str, StepSummary]) -> None:
    import wavecast
    from wavecast.campaigns.checks.baseline import Baseline, write_baseline
    from wavecast.campaigns.checks.checking import software

    if os.environ.get("PYTEST_XDIST_WORKER"):
        _fail(f"baselines are written by one process; run pytest -n 0 {_UPDATE}")
    before = _read(path) or Baseline({})
    steps = dict(before.steps) | {target: now}
    versions = software(wavecast.__version__)
    write_baseline(Baseline(steps, versions, "reference", before.usd_per_hour), path)


def _compare(
    path: Path, target: str, now: dict[str, StepSummary], tolerance: Mapping[str, float | None]
) -> None:
    import wavecast
    from wavecast.campaigns.checks.checking import compare_step, software
    from wavecast.campaigns.checks.config import given_tolerances
    from wavecast.campaigns.checks.verdicts import FAILING, Outcome, explained

    kept = _read(path)
    if kept is None or target not in kept.steps:
        _fail(
            f"there is no baseline of {target} in {path.name}; write it with pytest {_UPDATE}, "
            "and commit the file"
        )
        return
    versions = kept.software, software(wavecast.__version__)
    before, allowed = kept.steps[target], given_tolerances(tolerance)
    verdicts = [
        compare_step(target, gpu, before.get(gpu), step, allowed, versions)
        for gpu, step in now.items()
    ]
    bad = [each for each in verdicts if each.outcome in (*FAILING, Outcome.UNKNOWN)]
    if bad:
        lines = [explained(each) for each in bad]
        _fail("\n".join([*lines, f"pytest {_UPDATE} accepts the change"]))
