"""Steps on several ranks: what torchrun is told, and that the ranks train one model."""

from __future__ import annotations

import pytest

from wavecast.campaigns.suite_runs import spread_over
from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.measurement.data_parallel import (
    Machines,
    _torchrun,
    _why,
    sample_spread,
)
from wavecast.runs.suite_results import SuiteStep

STEP = SuiteStep("a3c", 4, "fp32")


def test_one_machine_measures_each_doubling_and_several_all_their_gpus() -> None:
    assert [step.gpus for step in spread_over([STEP], 6, 1)] == [1, 2, 4, 6]
    assert [(step.gpus, step.nodes) for step in spread_over([STEP], 4, 2)] == [(4, 2)]
    with pytest.raises(InvalidInput, match="3 GPUs in 2 machines"):
        spread_over([STEP], 3, 2)


def test_each_machine_starts_its_own_ranks() -> None:
    command = " ".join(_torchrun(Machines(8, 2, 1, "first:29500")))
    assert "--nproc-per-node 4" in command
    assert "--node-rank 1 --master-addr first --master-port 29500" in command


def test_the_error_of_a_rank_is_found_in_what_torchrun_prints() -> None:
    printed = "[rank1]: ValueError: a batch of 0\nChildFailedError: x\n  exitcode  : 1\n===="
    assert _why(printed) == "ValueError: a batch of 0"
    assert _why("wavecast.errors.InvalidInput: fp8") == "wavecast.errors.InvalidInput: fp8"
    assert _why("exitcode  : -9 (pid: 7)\n=====") == "exitcode  : -9 (pid: 7)"


@pytest.mark.slow
def test_two_ranks_run_by_gloo() -> None:
    sample = sample_spread(*("a3c", 2, "fp32", Machines(2)), device="cpu", limit_s=0.0, most=10)
    assert sample is not None
    assert len(sample.seconds) == 10
    assert sample.software.endswith("DistributedDataParallel, gloo")
