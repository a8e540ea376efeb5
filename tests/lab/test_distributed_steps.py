"""Published steps on several GPUs, rebuilt from the columns of a table."""

from __future__ import annotations

from typing import Any

import pytest
from published_rows import VTRAIN as ROW

from lab.measured.distributed_steps import NotRebuilt, rebuilt
from lab.score.distributed import ScoredStep, kendall, ranking, step_flops


def test_a_row_gives_the_model_the_strategy_and_the_cluster() -> None:
    step = rebuilt(ROW)
    assert (step.strategy.pipeline, step.strategy.microbatches, step.strategy.gpus) == (2, 2, 2)
    assert step.sizes.vocab == 50304  # padded to a multiple of 128
    assert (step.sizes.recompute, step.sizes.fused_attention) == ("full", False)
    assert step.cluster.gpus_per_node == 8
    wide = rebuilt({**ROW, "interconnect_inter": "RoCE 4x100 Gb/s per node"})
    assert wide.cluster.network is not None
    assert wide.cluster.network.bytes_per_s == 5e10


def test_the_adapters_of_the_network_between_gpus_are_told_from_others() -> None:
    # training_results_v3.1, system file of a DGX H100
    text = "Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s"
    network = rebuilt({**ROW, "interconnect_inter": text}).cluster.network
    assert network is not None
    assert (network.nics, network.bytes_per_s) == (8, 4e11)


@pytest.mark.parametrize(
    ("framework", "overlaps"),
    [
        ("NVIDIA NeMo Framework Release 24.09", True),
        ("PyTorch NVIDIA Release 23.09", True),
        ("Megatron-DeepSpeed", False),
    ],
)
def test_the_names_of_transformer_engine_are_known(framework: str, overlaps: bool) -> None:
    change = {"framework": framework, "tp": 2, "pp": 1, "sequence_parallel": True}
    assert rebuilt({**ROW, **change}).strategy.overlap_tensor is overlaps


def test_a_machine_that_is_known_has_its_own_processor() -> None:
    assert rebuilt(ROW).cluster.node.processor == "AMD EPYC 7742"
    known = rebuilt({**ROW, "source": "vinjn/nanotron-ultrascale-playbook"})
    assert known.cluster.node.processor == "AMD EPYC 7R13"


def test_products_in_8_bits_have_weights_in_16() -> None:
    step = rebuilt({**ROW, "precision": "mxfp8"})
    assert (step.strategy.fp8, step.sizes.precision) == (True, "bf16")
    assert not rebuilt(ROW).strategy.fp8


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "TPU-v4"}, "a TPU"),
        ({"precision": "nvfp4"}, "products in 4 bits"),
        ({"cp": 2}, "do not multiply to the GPUs"),
        ({"micro_batch": None}, "micro-batch is not stated"),
        ({"global_batch": 32}, "do not add up to the global batch"),
        ({"n_gpu": 4}, "do not multiply to the GPUs"),
    ],
)
def test_what_cannot_be_rebuilt_is_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotRebuilt, match=reason):
        rebuilt({**ROW, **change})


def test_the_baseline_counts_the_flops_of_one_gpu() -> None:
    token = 6 * 0.35482112e9 + 6 * 24 * 1024 * 1024
    assert step_flops(ROW) == pytest.approx(token * 1024 * 16 / 2)


def test_kendall_is_one_for_equal_orders_and_minus_one_for_opposite_ones() -> None:
    assert kendall([1, 2, 3], [10, 20, 90]) == 1
    assert kendall([1, 2, 3], [3, 2, 1]) == -1
    assert kendall([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)


def test_ranking_is_told_with_and_without_flagged_rows() -> None:
    row = {**ROW, "source": "a/nanotron", "framework": "nanotron"}
    slow = {**row, "qc": "far_below_best_of_same_size"}
    rows = [(row, 1.0, 1.0), (row, 2.0, 2.0), (row, 3.0, 3.0), (slow, 0.5, 9.0)]
    scored = [
        ScoredStep(rebuilt({**given, "step_s": measured}), predicted, None)
        for given, predicted, measured in rows
    ]
    lines = ranking(scored)
    assert lines[2].endswith("| 4 | 0.00 | 800.0% | 3 | 1.00 | 0.0% |")
