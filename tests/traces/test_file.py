"""Trace files survive a round trip; any other file is refused with a message of one line."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drawn_traces import traces
from hypothesis import HealthCheck, given, settings

from wavecast.errors import InvalidInput
from wavecast.traces import file
from wavecast.traces.graphs import CALL, GRAPH_LAUNCH, GUARDS, MARKS, graphs_of, numbered
from wavecast.traces.step import (
    Allocation,
    Call,
    Kernel,
    Measurement,
    Op,
    Phase,
    Role,
    TensorSpec,
    Trace,
    Value,
    load_trace,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(traces())
def test_any_trace_survives_a_round_trip(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "trace.json.gz"
    trace.save(path)
    assert load_trace(path) == trace
    first = path.read_bytes()
    load_trace(path).save(path)
    assert path.read_bytes() == first


SPEC = TensorSpec((4, 8), "bfloat16", (1, 4))
OP = Op("aten.mm", (SPEC, SPEC), (SPEC,), (("precision", "tf32"), ("dims", (0, 1))))
EXAMPLE = Trace(
    calls=(
        Call(
            OP,
            Phase.FORWARD,
            "Net.0",
            kernels=(Kernel("gemm", 1e-6, (1, 2, 3)),),
            host_s=1e-5,
            reads=(0, 1),
            writes=(2,),
        ),
        Call(OP, Phase.BACKWARD, "Net.0", stream=1, syncs=True, reads=(2, 0), writes=(2,), graph=0),
    ),
    allocations=(
        Allocation(64, None, None, Role.PARAMETER),
        Allocation(64, 0, 2, Role.INTERMEDIATE),
    ),
    framework="torch 2.13.0",
    capability=(9, 0),
    samples=4,
    notes=("upper bound: something",),
    measurement=Measurement("NVIDIA H200", 2e-5, 1e-6),
    values=(
        Value(SPEC, 0, parameter="Net.0.weight"),
        Value(SPEC, 0, view_of=0),
        Value(SPEC, 1, gradient_of="Net.0.weight"),
    ),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "trace.json.gz"
    EXAMPLE.save(file)
    return file


def _message_of_refusal(path: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        load_trace(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(path))
    assert str(path) in message
    return message


def test_the_same_trace_gives_the_same_bytes(path: Path) -> None:
    first = path.read_bytes()
    EXAMPLE.save(path)
    assert path.read_bytes() == first


def test_a_file_cut_short_anywhere_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        _message_of_refusal(path)


def test_an_altered_byte_is_refused_or_changes_nothing(path: Path) -> None:
    whole = path.read_bytes()
    refused = 0
    for position in range(len(whole)):
        altered = bytearray(whole)
        altered[position] ^= 0x55
        path.write_bytes(altered)
        try:
            unharmed = load_trace(path) == EXAMPLE  # the time stamp of gzip, for one
        except InvalidInput:
            refused += 1
        else:
            assert unharmed
    assert refused > len(whole) - 16


def _rewrite(path: Path, change: Callable[[Any], Any], seal: bool = True) -> None:
    document = json.loads(gzip.decompress(path.read_bytes()))
    changed = change(copy.deepcopy(document))
    document = document if changed is None else changed
    if seal and isinstance(document, dict) and "trace" in document:
        document["sha256"] = file._digest(document["trace"])
    path.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


def _set(*keys: Any, value: Any) -> Callable[[Any], Any]:
    def change(document: Any) -> Any:
        target = document
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value
        return document

    return change


ALTERED: dict[str, Callable[[Any], Any]] = {
    "a list": lambda d: [],
    "another format": _set("format", value="other"),
    "an unknown field": _set("extra", value=1),
    "no trace": lambda d: {k: v for k, v in d.items() if k != "trace"},
    "a trace that is a text": _set("trace", value="x"),
    "a missing table": lambda d: d["trace"].pop("specs") and d,
    "an unknown table": _set("trace", "more", value=[]),
    "a table that is no list": _set("trace", "ops", value={}),
    "an op that is no row": _set("trace", "ops", 0, value=7),
    "an op with too few items": _set("trace", "ops", 0, value=["aten.mm", []]),
    "an op without a name": _set("trace", "ops", 0, 0, value=None),
    "a spec beyond the table": _set("trace", "ops", 0, 1, 0, value=99),
    "a negative spec": _set("trace", "ops", 0, 1, 0, value=-1),
    "an index that is a float": _set("trace", "ops", 0, 1, 0, value=0.0),
    "an index that is a truth": _set("trace", "calls", "op", 0, value=False),
    "an attribute without a name": _set("trace", "ops", 0, 3, 0, value=[None, 1]),
    "an attribute that is an object": _set("trace", "ops", 0, 3, 0, value=["a", {}]),
    "an attribute of texts": _set("trace", "ops", 0, 3, 0, value=["a", ["b"]]),
    "a deep attribute": _set("trace", "ops", 0, 3, 0, value=["a", [[1]]]),
    "an unknown dtype": _set("trace", "specs", 0, 1, value="float7"),
    "a dtype that is a list": _set("trace", "specs", 0, 1, value=[]),
    "an unknown device": _set("trace", "specs", 0, 3, value="tpu"),
    "a shape that is a text": _set("trace", "specs", 0, 0, value="4x8"),
    "a negative size": _set("trace", "specs", 0, 0, 0, value=-4),
    "a huge size": _set("trace", "specs", 0, 0, 0, value=10**400),
    "a hundred thousand dimensions": _set("trace", "specs", 0, 0, value=[1 << 48] * 100_000),
    "a stride too many": _set("trace", "specs", 0, 2, value=[1, 2, 3]),
    "a call of no op": _set("trace", "calls", "op", 0, value=5),
    "an unknown phase": _set("trace", "calls", "phase", 0, value=9),
    "a column too short": _set("trace", "calls", "phase", value=[0]),
    "an unknown module": _set("trace", "calls", "module", 0, value=9),
    "a stream of no call": _set("trace", "calls", "stream", value=[[9, 1]]),
    "a stream that is a text": _set("trace", "calls", "stream", value=[[1, "a"]]),
    "a wait that is a number": _set("trace", "calls", "syncs", value=[[1, 2]]),
    "an unknown kernel": _set("trace", "calls", "kernels", value=[[0, [[9, 1e-6, None]]]]),
    "a negative time": _set("trace", "calls", "host_s", value=[[0, -1.0]]),
    "a time that is a text": _set("trace", "calls", "kernels", value=[[0, [[0, "fast", None]]]]),
    "a time before the step": _set("trace", "calls", "kernels", value=[[0, [[0, 1e-6, -1.0]]]]),
    "a grid of two": _set("trace", "launches", 0, 1, value=[1, 2]),
    "a measurement on no GPU": _set("trace", "measurement", "gpu", value=None),
    "a measurement without a time": _set("trace", "measurement", "seconds", value="long"),
    "a measurement of no runs": _set("trace", "measurement", "repeats", value=0),
    "memory of negative size": _set("trace", "allocations", "nbytes", 0, value=-1),
    "memory of an unknown role": _set("trace", "allocations", "role", 0, value=42),
    "memory born after the end": _set("trace", "allocations", "born", 1, value=9),
    "memory freed before it is made": _set("trace", "allocations", "born", 1, value=3),
    "a graph that is a text": _set("trace", "calls", "graph", value=[[0], ["a"]]),
    "a graph of no number": _set("trace", "calls", "graph", value=[[0], []]),
    "values that are a list": _set("trace", "values", value=[]),
    "a use too few": _set("trace", "values", "uses", value=[0, 0, 0, -1, -1]),
    "a use too many": _set("trace", "values", "uses", value=[0, 0, 0, 1, -2, 3, 1]),
    "a use of no value": _set("trace", "values", "uses", 1, value=7),
    "a use before the first value": _set("trace", "values", "uses", 3, value=-9),
    "an unknown call without values": _set("trace", "values", "unknown", value=[2]),
    "memory of a value beyond the table": _set("trace", "values", "allocation", 2, value=5),
    "a view of itself": _set("trace", "values", "view_of", value=[-1, 1, 0]),
    "a view of no value": _set("trace", "values", "view_of", 0, value=1),
    "a column of values too short": _set("trace", "values", "view_of", value=[0]),
    "an unknown parameter": _set("trace", "values", "parameter", value=[[0], [7]]),
    "a parameter of no value": _set("trace", "values", "parameter", value=[[9], [0]]),
    "rows without parameters": _set("trace", "values", "parameter", value=[[0], []]),
    "half a name": _set("trace", "values", "names", value=[[0]]),
    "half a capability": _set("trace", "capability", value=[9]),
    "a capability of texts": _set("trace", "capability", value=["9", "0"]),
    "no samples": _set("trace", "samples", value=0),
    "samples that are a text": _set("trace", "samples", value="four"),
    "notes that are numbers": _set("trace", "notes", value=[1]),
    "a unit that is a list": _set("trace", "unit", value=[]),
    "a very long wrong value": _set("trace", "unit", value=["x" * 100_000]),
}


@pytest.mark.parametrize("what", ALTERED)
def test_altered_content_is_refused_even_with_a_right_checksum(what: str, path: Path) -> None:
    _rewrite(path, ALTERED[what])
    _message_of_refusal(path)


def test_a_value_that_is_used_with_another_spec_is_refused(path: Path) -> None:
    def change(document: Any) -> Any:
        document["trace"]["specs"].append([[2], "float32", None, "cuda"])
        document["trace"]["ops"].append(["aten.mm", [1, 0], [0], []])
        document["trace"]["calls"]["op"] = [0, 1]
        return document

    _rewrite(path, change)
    assert "another spec" in _message_of_refusal(path)


def test_calls_that_do_not_agree_with_their_values_are_not_written(tmp_path: Path) -> None:
    other = replace(EXAMPLE.values[0], spec=TensorSpec((2,), "float32"))
    for values in ((other, *EXAMPLE.values[1:]), EXAMPLE.values[:1]):
        with pytest.raises(InvalidInput, match="cannot write the trace"):
            replace(EXAMPLE, values=values).save(tmp_path / "wrong.json.gz")


def test_a_call_of_which_no_values_are_known_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    some = replace(
        EXAMPLE, calls=(EXAMPLE.calls[0], replace(EXAMPLE.calls[1], reads=(), writes=()))
    )
    some.save(path)
    assert load_trace(path) == some


def test_values_that_no_call_uses_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    unused = Value(SPEC, 1)
    first, second = EXAMPLE.calls
    moved = replace(
        EXAMPLE,
        calls=(
            replace(first, reads=(1, 2), writes=(3,)),
            replace(second, reads=(3, 1), writes=(3,)),
        ),
        values=(
            unused,
            EXAMPLE.values[0],
            replace(EXAMPLE.values[1], view_of=1),
            EXAMPLE.values[2],
        ),
    )
    moved.save(path)
    assert load_trace(path) == EXAMPLE


def test_graphs_of_version_2_are_known_by_their_counts() -> None:
    def marked(name: str, **attrs: int) -> Call:
        return Call(Op(name, (), (), tuple(attrs.items())), Phase.FORWARD)

    kernel = Call(OP, Phase.FORWARD)
    calls = (
        *(marked(GUARDS), marked(CALL, calls=2, inputs=3), kernel, marked(GUARDS), kernel, kernel),
        *(marked(CALL, calls=0, inputs=1), marked(GRAPH_LAUNCH, calls=1), kernel, kernel),
    )
    counted = numbered(calls)
    assert [call.graph for call in counted] == [None, 0, 0, 0, 0, None, 1, 1, 1, None]
    assert {call.op for call in counted if call.op.name in MARKS} == {
        Op(CALL, (), (), (("inputs", 3),)),
        Op(CALL, (), (), (("inputs", 1),)),
        Op(GRAPH_LAUNCH, (), ()),
    }
    assert [graph.is_replayed for graph in graphs_of(counted)] == [False, True]


def test_an_altered_trace_is_known_by_its_checksum(path: Path) -> None:
    _rewrite(path, _set("trace", "samples", value=5), seal=False)
    assert "altered" in _message_of_refusal(path)


@pytest.mark.parametrize("version", [0, 1, 4, "2", None, True, 2.0, 10**100])
def test_another_version_is_refused_with_what_to_do(version: Any, path: Path) -> None:
    _rewrite(path, _set("version", value=version))
    assert "trace the step again" in _message_of_refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"plain text",
        b'{"format": "wavecast-trace"}',
        gzip.compress(b"", mtime=0),
        gzip.compress(b"not json", mtime=0),
        gzip.compress(b"\xff\xfe\x00", mtime=0),
        gzip.compress(b"null", mtime=0),
        gzip.compress(b"[" * 100_000, mtime=0),
        gzip.compress(b"1" * 10_000, mtime=0),
        gzip.compress(b'{"format": NaN}', mtime=0),
        gzip.compress(b'{"format": 1e999}', mtime=0),
        gzip.compress(b'{"format": "wavecast-trace", "format": "wavecast-trace"}', mtime=0),
        gzip.compress(b"{}", mtime=0)[:-4] + b"\0\0\0\0",
    ],
)
def test_what_is_no_trace_file_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    _message_of_refusal(path)


def test_a_file_that_unpacks_to_too_much_is_refused(path: Path) -> None:
    path.write_bytes(gzip.compress(b" " * ((1 << 27) + 1), mtime=0))
    assert "larger than 128 MiB when unpacked" in _message_of_refusal(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "there is no trace file" in _message_of_refusal(tmp_path / "none")
    _message_of_refusal(tmp_path)


def test_a_number_that_json_cannot_hold_is_refused_when_writing(tmp_path: Path) -> None:
    call = Call(OP, Phase.FORWARD, host_s=float("nan"))
    with pytest.raises(InvalidInput, match="cannot write the trace"):
        Trace((call,)).save(tmp_path / "trace.json.gz")


def test_a_repeated_layer_is_stored_once(path: Path) -> None:
    replace(EXAMPLE, calls=EXAMPLE.calls * 1000).save(path)
    assert path.stat().st_size < 10_000
