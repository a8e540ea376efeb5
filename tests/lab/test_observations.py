"""The observations of the TBD paper, on made-up results and on those of our H200."""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from typing import Any

import pytest

from lab.measured import campaigns
from lab.places import DOCS, H200
from wavecast import device
from wavecast.footprint.memory import KindFinder, peak_by_tbd_kind, peak_bytes
from wavecast.runs.run import ENOUGH
from wavecast.runs.suite_results import (
    Observation,
    SuiteResult,
    observe,
    observe_kernels,
    read_results,
)


def sweep(model: str, *values: dict[str, Any]) -> list[SuiteResult]:
    """Results at batches 8, 16, 32 ... with these values."""
    usual: dict[str, Any] = {
        "gpu_utilisation": 0.97,
        "fp32_utilisation": 0.4,
        "tensor_utilisation": 0.0,
        "weights_bytes": 10,
        "weight_gradients_bytes": 10,
        "workspace_bytes": 10,
        "dynamic_bytes": 10,
    }
    return [
        SuiteResult(
            model,
            8 << index,
            "fp32",
            "t4",
            "ok",
            **(usual | {"throughput_per_s": 100.0, "feature_maps_bytes": 100 << index} | changed),
        )
        for index, changed in enumerate(values)
    ]


CNN = sweep("resnet50", {"throughput_per_s": 95.0}, {"throughput_per_s": 100.0})
RNN = sweep(
    "nmt",
    {"throughput_per_s": 50.0, "gpu_utilisation": 0.3, "fp32_utilisation": 0.1},
    {"throughput_per_s": 90.0, "gpu_utilisation": 0.5, "fp32_utilisation": 0.2},
)


def shares(rows: list[SuiteResult]) -> dict[str, float]:
    return {
        observation.claim: observation.share
        for observation in observe(rows)
        if observation.agreeing or observation.others
    }


def test_a_suite_as_in_2018_agrees_with_every_observation() -> None:
    assert set(shares([*CNN, *RNN]).values()) == {1.0}
    assert {observation.number for observation in observe([*CNN, *RNN])} == {
        1,
        2,
        4,
        5,
        6,
        7,
        10,
        11,
    }


@pytest.mark.parametrize(
    ("rows", "claim"),
    [
        (sweep("vit", {}, {"throughput_per_s": 80.0}), "throughput does not fall"),
        (sweep("nmt", {}, {"throughput_per_s": 104.0}), "recurrent models are not saturated"),
        (sweep("vit", {}, {"throughput_per_s": 180.0}), "the other models are saturated"),
        (sweep("vit", {}, {"gpu_utilisation": 0.5}), "GPU utilisation does not fall"),
        (sweep("nmt", {}, {}), "GPU utilisation of LSTM models is low"),
        (sweep("vit", {}, {"gpu_utilisation": 0.9}), "GPU utilisation of the other models is 95%"),
        (sweep("vit", {}, {"fp32_utilisation": 0.1}), "utilisation of the cores"),
        (sweep("vit", {}, {"weights_bytes": 10_000}), "feature maps are most"),
        (sweep("vit", {}, {"workspace_bytes": 10_000}), "feature maps are most"),
        (sweep("vit", {}, {"feature_maps_bytes": 900}, {}), "feature maps grow in proportion"),
        # A straight line that does not begin at 0, as copies of weights made it: 60, 80, 120.
        (
            sweep(
                *("vit", {"feature_maps_bytes": 60}, {"feature_maps_bytes": 80}),
                {"feature_maps_bytes": 120},
            ),
            "feature maps grow in proportion",
        ),
        ([*CNN, *sweep("nmt", {}, {"fp32_utilisation": 0.9})], "use the cores less"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_observation_can_fail(rows: list[SuiteResult], claim: str) -> None:
    [share] = [share for text, share in shares(rows).items() if claim in text]
    assert share < 1


def test_steps_that_did_not_fit_say_nothing() -> None:
    assert shares([*CNN[:1], SuiteResult("resnet50", 16, "fp32", "t4", "oom")]) == {}


# On our H200: what still holds, and why the rest does not (docs/suite.md says it in words).


@pytest.fixture(scope="module")
def measured() -> dict[str, SuiteResult]:
    """Every model and precision at its largest batch."""
    rows = read_results(H200 / "suite.csv")
    assert len(rows) == 138
    assert {row.status for row in rows} == {"ok"}
    assert min(row.iterations or 0 for row in rows) >= ENOUGH
    assert set(Counter((row.model, row.precision) for row in rows).values()) == {3}
    return {f"{row.model} {row.precision}": row for row in rows}


@pytest.fixture(scope="module")
def seen() -> dict[str, Observation]:
    return {
        observation.claim: observation for observation in observe(read_results(H200 / "suite.csv"))
    }


def is_host_bound(row: SuiteResult) -> bool:
    assert row.host_s is not None
    assert row.gpu_s is not None
    return row.host_s > 0.9 * row.gpu_s


def test_throughput_and_feature_maps_grow_with_the_batch(seen: dict[str, Observation]) -> None:
    assert seen["throughput does not fall with the batch"].others == ("wgan-gp fp32",)
    assert not seen["feature maps grow in proportion to the batch"].others


def test_bert_large_copies_its_weights_at_any_batch(measured: dict[str, SuiteResult]) -> None:
    """671 MB, which were counted as feature maps once."""
    for batch in (4, 8, 16):
        trace = campaigns.traces("suite")[f"bert-large-b{batch}-bf16"]
        finder = KindFinder(trace)
        copies = [a for a in trace.allocations if finder.of(a) == "weight copies"]
        assert sum(a.nbytes for a in copies) / 1e6 == pytest.approx(671.2, abs=0.1)


def test_recurrent_models_are_not_saturated_and_on_a_large_gpu_few_are(
    seen: dict[str, Observation],
) -> None:
    assert seen["recurrent models are not saturated at the largest batch"].share == 1
    assert seen["the other models are saturated"].share < 0.5


def test_low_and_falling_utilisation_is_the_hosts(
    seen: dict[str, Observation], measured: dict[str, SuiteResult]
) -> None:
    falling = seen["GPU utilisation does not fall with the batch"].others
    assert falling == ("deep-speech-2 bf16",)  # each batch has another length
    assert is_host_bound(measured[falling[0]])
    low = seen["GPU utilisation of the other models is 95% or more"].others
    others = [name for name in low if not is_host_bound(measured[name])]
    assert others == ["googlenet fp32"]  # 92%
    assert f"{len(low)} of the 42" in (DOCS / "suite.md").read_text(encoding="utf-8")


def test_recurrent_layers_that_cudnn_runs_keep_the_gpu_busy(seen: dict[str, Observation]) -> None:
    little = seen["GPU utilisation of LSTM models is low"]
    assert "nmt fp32" in little.agreeing  # steps through its decoder in Python
    assert set(little.others) == {"gnmt fp32", "gnmt bf16"}


def test_feature_maps_dominate_in_most_cnns_and_not_where_weights_or_workspaces_are_large(
    seen: dict[str, Observation],
) -> None:
    observation = seen["feature maps are most of the memory"]
    cnns = ("resnet50", "inception-v3", "googlenet", "faster-rcnn")
    assert {f"{name} {p}" for name in cnns for p in ("fp32", "bf16")} <= set(observation.agreeing)
    assert {"llama-1b fp32", "gpt2 fp32", "vit fp32"} <= set(observation.agreeing)
    # Workspaces as large as a third of the feature maps, beside 138 million weights.
    assert {"vgg16 fp32", "vgg19 fp32", "alexnet fp32"} <= set(observation.others)
    # Adam's state of fp32 weights, beside feature maps of half the size.
    assert {"llama-1b bf16", "gpt2-medium bf16", "bert-base bf16"} <= set(observation.others)
    assert {"dlrm fp32", "dlrm bf16", "bert-large fp32"} <= set(observation.others)


@pytest.mark.slow
def test_memory_by_kind_is_that_of_the_measured_traces() -> None:
    for row in read_results(H200 / "suite.csv"):
        kinds = peak_by_tbd_kind(
            campaigns.traces("suite")[f"{row.model}-b{row.batch}-{row.precision}"]
        )
        assert row.feature_maps_bytes == kinds["feature maps"]
        assert row.dynamic_bytes == kinds["dynamic"]


@pytest.mark.slow
def test_recorded_lifetimes_and_workspaces_give_the_allocators_peak(
    measured: dict[str, SuiteResult],
) -> None:
    errors = []
    for row in read_results(H200 / "suite.csv"):
        trace = campaigns.traces("suite")[f"{row.model}-b{row.batch}-{row.precision}"]
        errors.append(abs(peak_bytes(trace.allocations) / (row.peak_bytes or 1) - 1))
    sentence = f"within {statistics.mean(errors):.1%} (mean), {max(errors):.0%} at worst"
    page = DOCS / "appendix" / "suite-steps.md"
    assert sentence in page.read_text(encoding="utf-8")


def test_batch_normalisation_is_long_and_uses_the_gpu_badly_in_every_cnn() -> None:
    names = ("resnet50-b64-fp32", "resnet50-b64-bf16", "inception-v3-b64-fp32", "vit-b16-bf16")
    traces = {name: campaigns.traces("suite")[name] for name in names}
    observation = observe_kernels(traces, device("h200-sxm"))
    assert len(observation.agreeing) == 3  # a transformer has none, so it does not count
    assert not observation.others


def test_gpu_utilisation_is_that_of_other_sources() -> None:
    with (H200 / "utilisation.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 13
    off = {r["model"] for r in rows if abs(float(r["wavecast"]) - float(r["nvidia_smi"])) > 0.03}
    assert off == {"a3c", "gnmt"}  # the shortest kernels; batches of other lengths
    for row in rows:
        others = (float(row["nvidia_smi"]), float(row["profiler"]))
        assert min(abs(float(row["wavecast"]) - other) for other in others) < 0.03


def test_the_page_shows_what_the_measurements_say(seen: dict[str, Observation]) -> None:
    page = (DOCS / "suite.md").read_text(encoding="utf-8")
    for row in seen.values():
        total = len(row.agreeing) + len(row.others)
        assert f"| {row.number} | {row.claim} | {len(row.agreeing)} of {total} |" in page
