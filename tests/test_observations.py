"""TBD's observations on made-up results: each can hold, and each can fail."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.observations import observe
from wavecast.campaign import Result


def sweep(model: str, *values: dict[str, Any]) -> list[Result]:
    """Results at batches 8, 16, 32 ... with these values."""
    usual: dict[str, Any] = {
        "gpu_utilisation": 0.97,
        "fp32_utilisation": 0.4,
        "tensor_utilisation": 0.0,
        "weights_bytes": 10,
        "weight_gradients_bytes": 10,
        "dynamic_bytes": 10,
    }
    return [
        Result(
            model,
            8 << index,
            "fp32",
            "t4",
            "ok",
            **(usual | {"throughput_per_s": 100.0, "feature_maps_bytes": 100 << index} | each),
        )
        for index, each in enumerate(values)
    ]


CNN = sweep("resnet50", {"throughput_per_s": 95.0}, {"throughput_per_s": 100.0})
RNN = sweep(
    "nmt",
    {"throughput_per_s": 50.0, "gpu_utilisation": 0.3, "fp32_utilisation": 0.1},
    {"throughput_per_s": 90.0, "gpu_utilisation": 0.5, "fp32_utilisation": 0.2},
)


def shares(rows: list[Result]) -> dict[str, float]:
    return {each.claim: each.share for each in observe(rows) if each.agreeing or each.others}


def test_a_suite_as_in_2018_agrees_with_every_observation() -> None:
    assert set(shares([*CNN, *RNN]).values()) == {1.0}
    assert {each.number for each in observe([*CNN, *RNN])} == {1, 2, 4, 5, 6, 7, 10, 11}


@pytest.mark.parametrize(
    ("rows", "claim"),
    [
        (sweep("vit", {}, {"throughput_per_s": 80.0}), "throughput does not fall"),
        (sweep("nmt", {}, {"throughput_per_s": 104.0}), "recurrent models are not saturated"),
        (sweep("vit", {}, {"throughput_per_s": 180.0}), "the others are"),
        (sweep("vit", {}, {"gpu_utilisation": 0.5}), "GPU utilisation does not fall"),
        (sweep("nmt", {}, {}), "recurrent models use the GPU little"),
        (sweep("vit", {}, {"gpu_utilisation": 0.9}), "the others use it by 95%"),
        (sweep("vit", {}, {"fp32_utilisation": 0.1}), "utilisation of the cores"),
        (sweep("vit", {}, {"weights_bytes": 10_000}), "feature maps are most"),
        (sweep("vit", {}, {"feature_maps_bytes": 900}, {}), "feature maps grow in proportion"),
        ([*CNN, *sweep("nmt", {}, {"fp32_utilisation": 0.9})], "use the cores less"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_observation_can_fail(rows: list[Result], claim: str) -> None:
    [share] = [share for said, share in shares(rows).items() if claim in said]
    assert share < 1


def test_steps_that_did_not_fit_say_nothing() -> None:
    assert shares([*CNN[:1], Result("resnet50", 16, "fp32", "t4", "oom")]) == {}
