"""Numbers as people read them, and tables that fit."""

from __future__ import annotations

import dataclasses
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import call, mm, step, tensor, trace, unknown
from rich.console import Console, RenderableType

import wavecast
from wavecast.hardware.devices import device
from wavecast.predictors.roofline import Roofline
from wavecast.report import record, text
from wavecast.report.tables import Column, fitting, width_of
from wavecast.report.units import count, duration, fact, memory, quantity, three_digits
from wavecast.steps.prediction import Prediction, Share, predict
from wavecast.traces.step import Op, Trace

WIDTHS = (60, 80, 120, 200)


def shown(part: RenderableType, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(part)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def predictions(made: Trace, *gpus: str) -> list[Prediction]:
    return [predict(made, gpu, predictor=Roofline()) for gpu in gpus]


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (0, "0.00 us"),
        (1.234e-7, "0.12 us"),
        (12.34e-6, "12.3 us"),
        (0.9996e-3, "1.00 ms"),
        (0.1234, "123 ms"),
        (0.99996, "1.00 s"),
        (9.996, "10.0 s"),
        (99.96, "100 s"),
        (12345, "12345 s"),
    ],
)
def test_durations_have_three_digits_in_the_unit_that_fits(seconds: float, wanted: str) -> None:
    assert duration(seconds) == wanted


def test_quantities_and_memory_have_prefixes() -> None:
    assert quantity(3.123e12, "FLOP") == "3.12 TFLOP"
    assert quantity(999.9e9, "B/s") == "1.00 TB/s"
    assert quantity(12.5) == "12.5"
    assert quantity(125_000) == "125 k"
    assert memory(24 << 30) == "24.0 GiB"
    assert memory((1 << 20) - 1) == "1.00 MiB"
    assert memory(12) == "12 B"
    assert count(65536) == "65,536"
    assert count(1.234) == "1.23"
    assert count(0) == "0"


def test_facts_are_shown_in_the_unit_of_their_name() -> None:
    assert fact("boost_clock_hz", 1.98e9) == "1.98 GHz"
    assert fact("memory_bytes", 80 << 30) == "80.0 GiB"
    assert fact("shared_bytes_per_sm", 228 << 10) == "228 KiB"
    assert fact("pcie_bytes_per_s", 6.4e10) == "64.0 GB/s"
    assert fact("bf16_tensor_flops", 9.9e14) == "990 TFLOP/s"
    assert fact("tdp_w", 700.0) == "700 W"
    assert fact("sm_count", 132) == "132"
    assert fact("compute_capability", (9, 0)) == "9.0"


@given(st.floats(1e-9, 1e12))
def test_three_digits_are_near_the_number(value: float) -> None:
    assert float(three_digits(value)) == pytest.approx(value, rel=5.1e-3, abs=5.1e-3)


columns = st.lists(
    st.builds(
        Column,
        st.text("abc", min_size=1, max_size=9),
        st.lists(st.text("xyz", min_size=1, max_size=20), min_size=2, max_size=2),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=8,
)


@given(columns, st.integers(1, 150))
def test_a_table_fits_its_width_as_far_as_its_needed_columns_do(
    given_: list[Column], width: int
) -> None:
    kept = fitting(given_, width)
    needed = [column for column in given_ if column.rank == 0]
    assert [column for column in kept if column.rank == 0] == needed
    assert width_of(kept) <= max(width, width_of(needed) if needed else 0)
    for column in given_:
        if column not in kept and kept:
            assert column.rank >= max(other.rank for other in kept)


def test_a_column_of_which_nothing_is_known_is_left_out() -> None:
    known, unknown_ = Column("a", ["?", "1"], 1), Column("b", ["?", ""], 1)
    assert fitting([known, unknown_], 100) == [known]


@pytest.mark.parametrize("width", WIDTHS)
def test_predictions_fit_every_terminal_and_keep_gpu_and_step(width: int) -> None:
    gpus = [gpu.id for gpu in wavecast.devices()]
    lines = shown(text.predictions("step", predictions(step(), *gpus), width), width).splitlines()
    assert max(map(len, lines)) <= width
    heading = next(line for line in lines if line.startswith("GPU"))
    assert heading.split()[:2] == ["GPU", "step"]
    assert "…" not in "".join(lines)
    assert {line.split()[0] for line in lines if line} >= set(gpus)


@pytest.mark.parametrize("width", WIDTHS)
def test_devices_fit_every_terminal(width: int) -> None:
    lines = shown(text.devices(wavecast.devices(), width), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert ("wider terminal" in " ".join(lines)) == (width < 123)


@pytest.mark.parametrize("width", WIDTHS)
def test_all_facts_of_a_device_are_shown_at_every_width(width: int) -> None:
    gpu = device("h200-sxm")
    lines = shown(text.device_facts(gpu), width).splitlines()
    assert max(map(len, lines)) <= width
    for name in (*gpu.sources, *(f"measured {name}" for name in gpu.measured)):
        assert any(line.startswith(f"{name} ") for line in lines), name


@pytest.mark.parametrize("width", WIDTHS)
def test_a_gpu_that_is_too_small_is_marked_at_every_width(width: int) -> None:
    found = predictions(step(state_bytes=200 << 20), "t4", "l4", "a100-sxm-80gb")
    out = shown(text.predictions("step", found, width), width)
    marked = [line for line in out.splitlines() if line.startswith("t4 ")]
    assert "does not fit" in marked[0]
    assert out.count("does not fit") == 2  # the row, and the footnote that explains it
    assert "alone need 20.1 GiB" in " ".join(out.split())
    if width == 200:
        assert "needs at least 20.1 GiB of 16.0 GiB" in marked[0]


def test_memory_is_no_topic_where_everything_fits() -> None:
    out = shown(text.predictions("step", predictions(step(), "t4", "l4"), 200))
    assert "memory" not in out
    assert "fit" not in out


def test_what_is_not_predicted_is_said_once_for_all_gpus() -> None:
    out = shown(text.predictions("step", predictions(step(), "t4", "l4"), 200))
    assert "not predicted, counted as 0: mine.secret.default (2x)\n" in out


def test_what_only_some_gpus_cannot_do_names_them() -> None:
    eights = tensor(64, 64, dtype="float8_e4m3fn")
    product = Op("aten._scaled_mm", (eights, eights), (tensor(64, 64),))
    found = predictions(trace(call(mm()), call(product)), "t4", "v100-sxm-32gb", "h100-sxm-80gb")
    out = shown(text.predictions("step", found, 200))
    assert "not predicted on t4, v100-sxm-32gb, counted as 0: aten._scaled_mm (1x)\n" in out


def test_a_step_that_nobody_can_predict_is_still_a_table() -> None:
    found = predictions(trace(call(unknown()), samples=4), "t4")
    out = shown(text.predictions("step", found, 200))
    assert "not predicted, counted as 0" in out
    assert "op times: nobody" in out


def test_without_samples_there_is_no_throughput_but_a_hint() -> None:
    out = shown(text.predictions("step", predictions(step(samples=None), "l4"), 200))
    assert "samples/s" not in out
    assert "samples/$" not in out
    assert "(--batch)" in out


def test_ranges_that_nobody_held_to_measurements_are_said_to_be_uncalibrated() -> None:
    assert "nine in ten" in shown(text.predictions("s", [predict(step(), "l4")], 200))
    assert "uncalibrated" in shown(text.predictions("s", predictions(step(), "l4"), 200))


def test_notes_of_all_traces_are_shown_and_counted_when_many() -> None:
    notes = [f"upper bound: number {i}" for i in range(8)]
    first = dataclasses.replace(step(), notes=tuple(notes[:4]))
    second = dataclasses.replace(step(), notes=tuple(notes[2:]))
    found = predictions(first, "l4") + predictions(second, "t4")
    out = shown(text.predictions("step", found, 200, ["read me"]))
    assert "note: read me\n" in out
    assert [f"note: {note}\n" in out for note in notes] == [True] * 4 + [False] * 4
    assert "note: and 4 more (--json has all)" in out


def test_a_breakdown_sums_up_what_it_does_not_list() -> None:
    parts = [Share(f"op{i}", 1, float(100 - i)) for i in range(40)]
    out = shown(text.shares("by op", parts, sum(part.gpu_s for part in parts), limit=10))
    assert "25 others" not in out
    assert "30 others" in out
    shares = [float(line.split()[-1].rstrip("%")) for line in out.splitlines() if "%" in line]
    assert sum(shares) == pytest.approx(100, abs=0.6)


def test_names_with_brackets_are_shown_as_they_are() -> None:
    out = shown(text.shares("by module", [Share("net[bold].layers[0]", 1, 1.0)], 1.0))
    assert "net[bold].layers[0]" in out


def test_records_are_plain_data_for_every_gpu() -> None:
    import json

    for each in predictions(step(), *(gpu.id for gpu in wavecast.devices())):
        found = json.loads(json.dumps(record.prediction(each), allow_nan=False))
        assert found["gpu"] == each.device.id
        assert (found["usd_per_hour"] is None) == (found["price"] is None)
