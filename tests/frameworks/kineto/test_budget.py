"""Profiler files that ask for too much, or have values of other types than the profiler writes."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from over_all import over

from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto import calls, events, read_kineto
from wavecast.frameworks.kineto.events import Inherited, Node, Span, enclosing, nest
from wavecast.frameworks.kineto.schema import Argument, op_of
from wavecast.frameworks.kineto.survey import named
from wavecast.traces.step import TensorSpec, Trace

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 13, "dur": 1, "args": {"correlation": 1}}
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 12, "dur": 1}
LAUNCH |= {"tid": 1, "args": {"correlation": 1}}


def op(name: str, shapes: list[Any], types: list[str], values: list[str]) -> dict[str, Any]:
    recorded = {"Input Dims": shapes, "Input type": types, "Concrete Inputs": values}
    event = {"ph": "X", "cat": "cpu_op", "name": name, "ts": 10, "dur": 20, "tid": 1}
    return {**event, "args": recorded}


def write(folder: Path, *of: object, **fields: object) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps({"traceEvents": of, **fields}))
    return path


def read(folder: Path, *of: object, **fields: object) -> Trace:
    return read_kineto(write(folder, *of, **fields))


@pytest.mark.parametrize(
    ("name", "shape", "types", "values"),
    [
        ("aten::unbind", [20_000_000], ["float", "Scalar"], ["", "0"]),
        ("aten::split", [20_000_000], ["float", "Scalar", "Scalar"], ["", "1", "0"]),
        ("aten::chunk", [20_000_000], ["float", "Scalar", "Scalar"], ["", "20000000", "0"]),
        ("aten::tensor_split", [20_000_000], ["float", "Scalar", "Scalar"], ["", "9000000", "0"]),
    ],
)
def test_an_op_that_returns_millions_of_tensors_is_not_run(
    name: str, shape: list[int], types: list[str], values: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    shapes = [shape, *([] for _ in types[1:])]
    trace = read(tmp_path, op(name, shapes, types, values), LAUNCH, KERNEL)
    assert all(len(call.op.outputs) < 5000 for call in trace)


def test_parts_of_a_long_dimension_are_still_known() -> None:
    pytest.importorskip("torch")
    long = Argument("float", (TensorSpec((20_000_000,), "float32"),), "")
    halves = op_of("aten.split", (long, *_numbers("10000000", "0")))
    assert [spec.shape for spec in halves.outputs] == [(10_000_000,)] * 2
    rows = Argument("float", (TensorSpec((128, 4), "float32"),), "")
    assert len(op_of("aten.unbind", (rows, *_numbers("0"))).outputs) == 128


def _numbers(*values: str) -> tuple[Argument, ...]:
    return tuple(Argument("Scalar", None, value) for value in values)


def test_a_list_times_a_number_is_not_computed() -> None:
    pytest.importorskip("torch")
    truths = Argument("ScalarList", None, "[True]")
    assert op_of("aten.mul", (truths, *_numbers(str(10**13)))).outputs == ()


WRONG: list[Any] = [[], [[1]], {}, {"a": []}, None, True, 1 << 63, -1, 10**4000, 1.5, "", "\ud800"]


@pytest.mark.parametrize("field", ["tid", "name", "cat", "ph", "ts", "dur", "pid", "args"])
@over("value", WRONG, called=lambda value: repr(value)[:12])
def test_a_field_of_an_event_may_have_any_type(field: str, value: Any, tmp_path: Path) -> None:
    add = op("aten::add", [[4], [4], []], ["float", "float", "Scalar"], ["", "", "1"])
    trace = read(tmp_path, add | {field: value}, LAUNCH | {field: value}, LAUNCH, KERNEL)
    assert all(math.isfinite(kernel.seconds) for call in trace for kernel in call.kernels)
    "".join(call.op.name + call.module for call in trace).encode()


@pytest.mark.parametrize(
    "field", ["device", "stream", "correlation", "grid", "block", "registers per thread"]
)
@over("value", WRONG, called=lambda value: repr(value)[:12])
def test_an_argument_of_a_kernel_may_have_any_type(field: str, value: Any, tmp_path: Path) -> None:
    trace = read(tmp_path, LAUNCH, KERNEL | {"args": {"correlation": 1, field: value}})
    assert sum(len(call.kernels) for call in trace) == 1


@pytest.mark.parametrize(
    "field", ["Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Sequence number"]
)
@over("value", WRONG, called=lambda value: repr(value)[:12])
def test_an_argument_of_an_op_may_have_any_type(field: str, value: Any, tmp_path: Path) -> None:
    add = op("aten::add", [[4], [4], []], ["float", "float", "Scalar"], ["", "", "1"])
    add["args"][field] = value
    assert read(tmp_path, add, LAUNCH, KERNEL).calls


@pytest.mark.parametrize("value", [*WRONG, [{}] * 3, {"nccl_version": [[]], "rank": []}])
def test_the_metadata_may_have_any_type(value: Any, tmp_path: Path) -> None:
    names = ("deviceProperties", "distributedInfo", "cuda_runtime_version", "cupti_version")
    trace = read(tmp_path, LAUNCH, KERNEL, **dict.fromkeys(names, value))
    assert trace.measurement is not None
    trace.measurement.software.encode()


def test_a_number_of_five_thousand_digits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text('{"traceEvents": [{"ph": "X", "ts": ' + "9" * 5000 + "}]}")
    with pytest.raises(InvalidInput, match="not a valid JSON"):
        read_kineto(path)


def test_a_step_of_five_thousand_digits_is_no_step(tmp_path: Path) -> None:
    mark = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#" + "9" * 5000, "ts": 1}
    assert "marks no steps" in read(tmp_path, mark, LAUNCH, KERNEL).notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["[],", "{},", "1,", '"a",'])
def test_a_value_longer_than_any_event_is_refused(inner: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json.gz"
    endless = inner * (6_000_000 // len(inner))
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"args": [' + endless.encode(), 1))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InvalidInput, match="longer than 4 MiB"):
        read_kineto(path)


def test_many_other_fields_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_OTHER", 1000)
    with pytest.raises(InvalidInput, match="longer than"):
        read(tmp_path, LAUNCH, KERNEL, **{f"field{i}": "x" * 100 for i in range(20)})


@pytest.mark.parametrize("limit", ["MOST_EVENTS", "_MOST_VALUES"])
def test_more_events_than_a_file_of_its_size_has_are_refused(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, limit, 100)
    with pytest.raises(InvalidInput, match="too many events"):
        read(tmp_path, *[{}] * 150, KERNEL)


def test_a_step_too_large_for_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LARGEST_VALUES_BYTES", 10_000)
    with pytest.raises(InvalidInput, match="too many events to keep"):
        read(tmp_path, *[LAUNCH] * 20, KERNEL)


def test_events_nested_too_deeply_are_refused() -> None:
    spans = [Span("aten::mm", "cpu_op", 1, i, 1000.0 - i, {}) for i in range(200)]
    assert len(nest(spans)) == 200
    with pytest.raises(InvalidInput, match="nested too deeply"):
        nest(spans, most_enclosing=1000)
    assert events.MOST_ENCLOSING < 1 << 24


@pytest.mark.parametrize("limit", ["MOST_DIFFERENT_OPS", "MOST_OUTPUTS"])
def test_a_step_of_too_many_different_ops_is_refused(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    op_of.cache_clear()
    monkeypatch.setattr(calls, limit, 10)
    many = [
        op("aten::unbind", [[2, i], []], ["float", "Scalar"], ["", "0"]) | {"ts": 100 * i}
        for i in range(1, 30)
    ]
    with pytest.raises(InvalidInput, match="different ops"):
        read(tmp_path, *many, LAUNCH, KERNEL)


def test_a_message_does_not_list_a_thousand_steps() -> None:
    assert len(named(list(range(0, 10_000, 7)))) < 200
    assert named([3, 1 << 62]) == f"the steps 3, {1 << 62}"
    assert named([3, 4, 5]) == "the steps 3 to 5"


def test_facts_of_deep_nests_are_found_once_for_each_node() -> None:
    spans = [Span(f"op{i}", "cpu_op", 1, float(i), 1000.0 - i, {}) for i in range(300)]
    nodes = nest(spans)
    asked: list[str] = []

    def own(node: Node) -> str | None:
        asked.append(node.name)
        return node.name if node.name in ("op10", "op200") else None

    innermost = Inherited(own)
    assert [innermost.of(nodes[depth]) for depth in (299, 150, 5)] == ["op200", "op10", None]
    assert innermost.of(None) is None
    assert len(asked) == 300
    assert Inherited(own, outermost=True).of(nodes[299]) == "op10"
    assert len(enclosing([nodes[50], nodes[20]])) == 51
