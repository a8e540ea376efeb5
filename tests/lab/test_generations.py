"""Constants of GPU generations: recovered from steps, shrunk, and fitted without a chip."""

from __future__ import annotations

import math

import pytest
from made import mm

from lab.fit.generations import (
    OLD,
    PULLS,
    Aged,
    Constants,
    PublishedStep,
    constants,
    digest,
    fit,
)
from wavecast import device
from wavecast.predictors.learned.predictor import COMPUTING, Learned, with_steps
from wavecast.traces.step import Op, TensorSpec

TURING, PASCAL = ("Turing", 72), ("Pascal", 28)
CORES = ("compute", "cores.7")
RECURRENT = ("recurrent", "cores.7")
TENSOR = ("compute", "tensor.7")


def step(
    factor: float,
    share: float,
    chip: tuple[str, int] = TURING,
    key: tuple[str, str] = CORES,
    *,
    era: str = "",
) -> PublishedStep:
    """A step predicted at one second, of which a share took `factor` times as long."""
    measured_s = share * factor + 1 - share
    return PublishedStep(
        chip, "made up", measured_s, other_s=1 - share, parts_s={key: share}, era=era
    )


def test_many_steps_that_agree_set_the_constant() -> None:
    offsets = fit([step(0.8, share) for share in (0.5, 0.7, 0.9) for _ in range(400)])
    assert offsets[CORES] == pytest.approx(math.log(0.8), abs=0.01)


def test_a_few_steps_move_a_constant_a_little() -> None:
    few, more = (fit([step(0.8, 0.9)] * count)[CORES] for count in (3, 30))
    assert math.log(0.8) < more < few < 0


def test_steps_without_an_error_give_zero() -> None:
    assert fit([step(1.0, 0.5)] * 50) == {CORES: 0.0}


def test_one_step_far_off_does_not_outweigh_the_others() -> None:
    agreeing = [step(0.8, 0.9)] * 40
    disturbed = fit([*agreeing, step(20.0, 0.9)])[CORES]
    assert disturbed == pytest.approx(fit(agreeing)[CORES], abs=0.05)


def test_kinds_of_work_have_separate_constants() -> None:
    offsets = fit([*[step(0.8, 0.9)] * 200, *[step(1.3, 0.9, key=RECURRENT)] * 200])
    assert offsets[CORES] < -0.15
    assert offsets[RECURRENT] > 0.15


def test_old_libraries_and_generations_have_separate_constants() -> None:
    today = [step(1.1, 0.9, key=TENSOR)] * 300
    old = [step(1.4, 0.9, PASCAL, key=TENSOR, era="before 1.13")] * 300
    later = [step(1.2, 0.9, PASCAL, key=TENSOR, era="1.13")] * 300
    offsets = fit([*today, *old, *later])
    assert offsets[TENSOR] == pytest.approx(math.log(1.1), abs=0.02)
    assert offsets[OLD, "before 1.13"] == pytest.approx(math.log(1.4 / 1.1), abs=0.02)
    assert offsets[OLD, "1.13"] == pytest.approx(math.log(1.2 / 1.1), abs=0.02)


def test_old_libraries_use_plain_cores_as_well_as_todays() -> None:
    offsets = fit([step(1.4, 0.9, era="1.13")] * 300)
    assert offsets[OLD, "1.13"] == 0.0
    assert offsets[CORES] == pytest.approx(math.log(1.4), abs=0.02)


def test_old_libraries_slow_only_tensor_cores() -> None:
    learned = Learned.shipped()
    aged = Aged.of(learned, {"old": {"1.13": math.log(1.25)}}, "1.13")
    half, single = (TensorSpec((2048, 2048), dtype) for dtype in ("float16", "float32"))
    given = (
        Op("aten.mm", (half, half), (half,)),
        Op("aten.mm", (single, single), (single,), (("precision", "ieee"),)),
        Op("aten.add.Tensor", (half, half), (half,)),
    )
    gpu = device("v100-sxm-16gb")
    before, after = learned.predict_all(given, gpu), aged.predict_all(given, gpu)
    ratios = [b.seconds / a.seconds for a, b in zip(before, after, strict=True) if a and b]
    assert ratios == pytest.approx([1.25, 1.0, 1.0])
    assert aged.predict(given[0], gpu) == after[0]
    unknown = Aged.of(learned, {"old": {"1.13": math.log(1.25)}}, "before 1.13")
    assert unknown.predict_all(given, gpu) == before


def test_the_shipped_file_has_a_constant_of_every_kind() -> None:
    later, old = (Aged.shipped(era).factor for era in ("1.13", "before 1.13"))
    assert 1.0 < later < old < 1.5
    assert set(PULLS) == {*COMPUTING.values(), OLD}


def test_a_gpu_is_left_out_with_its_chip() -> None:
    steps = [*[step(0.8, 0.9)] * 100, *[step(1.3, 0.9, PASCAL, ("compute", "cores.6"))] * 100]
    assert set(constants(steps)["compute"]) == {"cores.7", "cores.6"}
    assert set(constants(steps, without="titan-rtx")["compute"]) == {"cores.6"}
    # A Quadro of the same chip, which is another card.
    assert set(constants(steps, without="quadro-rtx-6000")["compute"]) == {"cores.6"}


def test_the_hash_is_of_the_measurements_and_not_of_their_order() -> None:
    some = [step(0.8, 0.9), step(1.3, 0.5), step(1.1, 0.4, PASCAL)]
    assert digest(some) == digest(reversed(some))
    assert digest(some) != digest(some[:2])


def test_constants_reach_the_models_they_are_for() -> None:
    wanted = {
        "compute": {"cores.7": 0.3},
        "recurrent": {"cores.7": -0.2},
        "depthwise": {"cores.AMD": 1.5},
    }
    learned = with_steps(Learned.shipped(), wanted)
    for name, model in learned.models.items():
        assert model.steps == (wanted[COMPUTING[name]] if name in COMPUTING else {})


def test_shipped_constants_are_small_and_of_generations_that_exist() -> None:
    generations = {
        str((gpu.compute_capability or (gpu.architecture,))[0]) for gpu in map(device, IDS)
    } | {"AMD"}
    for name, model in Learned.shipped().models.items():
        for key, offset in model.steps.items():
            units, _, generation = key.partition(".")
            assert units in ("cores", "tensor")
            assert generation in generations
            assert abs(offset) < (0.5 if name != "depthwise" else 2.0)


IDS = ("gtx-1080-ti", "titan-rtx", "a100-sxm-80gb", "h200-sxm", "mi100", "rx-6800", "rx-7700s")


@pytest.mark.parametrize(
    ("slower", "agreed"), [((1.2, 1.5), 1.2), ((0.7, 0.8), 0.8), ((0.7, 1.5), 1)]
)
def test_generations_of_another_vendor_without_steps_get_what_the_others_agree_on(
    slower: tuple[float, float], agreed: float
) -> None:
    def steps(chip: str, factor: float) -> list[PublishedStep]:
        parts = {("compute", f"cores.{chip}"): 1.0}
        return [PublishedStep((chip, 60), "a", factor, 0.0, parts) for _ in range(400)]

    made = constants([*steps("RDNA 2", slower[0]), *steps("RDNA 3", slower[1])])["compute"]
    assert made["cores.AMD"] == pytest.approx(math.log(agreed), abs=0.02)
    assert made["cores.AMD"] in (0.0, made["cores.RDNA 2"], made["cores.RDNA 3"])
    assert "cores.NVIDIA" not in made


def test_a_vendors_constant_counts_where_its_generation_has_none() -> None:
    others: Constants = {"recurrent": {}, "depthwise": {}}
    terms = {"tensor.AMD": 0.3, "tensor.RDNA 3": 0.1, "cores.7": 0.2}
    learned = with_steps(Learned.shipped(), {"compute": terms, **others})
    bare = with_steps(Learned.shipped(), {"compute": {}, **others})
    wanted = {"mi300x": 0.3, "rx-7900-xtx": 0.1, "rtx-4090": 0.0}
    half = mm(4096, 4096, 4096, dtype="float16")
    for gpu, term in wanted.items():
        with_term, without = (one.predict(half, device(gpu)) for one in (learned, bare))
        assert with_term is not None
        assert without is not None
        assert math.log(with_term.seconds / without.seconds) == pytest.approx(term, abs=0.01)


def test_another_vendors_depthwise_convolutions_have_one_constant_for_all_units() -> None:
    steps = [step(5.0, 0.9, key=("depthwise", "AMD"))] * 20
    offsets = constants(steps)["depthwise"]
    assert set(offsets) == {"cores.AMD", "tensor.AMD"}
    assert len(set(offsets.values())) == 1
    assert offsets["cores.AMD"] == pytest.approx(math.log(5.0), abs=0.1)
    assert constants([step(1.0, 0.5)] * 20)["depthwise"] == {}
