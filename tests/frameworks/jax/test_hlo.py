"""Scheduled HLO becomes calls: fusions, libraries, loops, and what nobody can read, by name."""

from __future__ import annotations

import pytest

import wavecast
from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.frameworks.jax.assembly import scheduled
from wavecast.frameworks.jax.driver import CompiledModule
from wavecast.frameworks.jax.hlo import read_hlo
from wavecast.frameworks.jax.origins import argument_of, module_of, phase_of
from wavecast.frameworks.jax.tracing import trace_of
from wavecast.hardware.devices import device
from wavecast.traces.step import Phase, Role

MODULE = """HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

FileNames
1 "/home/me/train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%fused_add (p.0: f32[64,128], p.1: f32[64,128]) -> f32[64,128] {
  %p.0 = f32[64,128]{1,0} parameter(0)
  %p.1 = f32[64,128]{1,0} parameter(1)
  ROOT %add.1 = f32[64,128]{1,0} add(%p.0, %p.1)
}

%fused_rows (q.0: f32[10,64,128], q.1: s32[]) -> f32[64] {
  %q.0 = f32[10,64,128]{2,1,0} parameter(0)
  %q.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %row = f32[1,64,128]{2,1,0} dynamic-slice(%q.0, %q.1, %zero, %zero), dynamic_slice_sizes={1,64,128}
  %flat = f32[64,128]{1,0} bitcast(%row)
  %start = f32[] constant(0)
  ROOT %sum = f32[64]{0} reduce(%flat, %start), dimensions={1}, to_apply=%add_f32
}

%body (carried: (s32[], f32[64,128])) -> (s32[], f32[64,128]) {
  %carried = (s32[], f32[64,128]{1,0}) parameter(0)
  %count = s32[] get-tuple-element(%carried), index=0
  %x.1 = f32[64,128]{1,0} get-tuple-element(%carried), index=1
  %twice = f32[64,128]{1,0} fusion(%x.1, %x.1), kind=kLoop, calls=%fused_add, metadata={op_name="jit(step)/transpose(jvp(net))/blocks.1/add" stack_frame_id=1}
  ROOT %next = (s32[], f32[64,128]{1,0}) tuple(%count, %twice)
}

%cond (c: (s32[], f32[64,128])) -> pred[] {
  %c = (s32[], f32[64,128]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main (weight: f32[64,128], x: f32[64,256], wide: f32[10,64,128]) -> (f32[64,128], f32[64]) {
  %weight = f32[64,128]{1,0} parameter(0), metadata={op_name="state['params']['w'][3]"}
  %x = f32[64,256]{1,0} parameter(1), metadata={op_name="batch['x']"}
  %wide = f32[10,64,128]{2,1,0} parameter(2), metadata={op_name="batch['y']"}
  %custom-call.1 = (f32[256,128]{1,0}, s8[4096]{0}) custom-call(%x, %weight), custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(step)/jvp(net)/dot_general" stack_frame_id=1}, backend_config={"gemm_backend_config":{"beta":0,"epilogue":"DEFAULT","dot_dimension_numbers":{"lhs_contracting_dimensions":["0"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]},"precision_config":{"operand_precision":["DEFAULT","DEFAULT"]}}}
  %product = f32[256,128]{1,0} get-tuple-element(%custom-call.1), index=0
  %odd = f32[256,128]{1,0} custom-call(%product), custom_call_target="their$kernel"
  %zero.1 = s32[] constant(0)
  %rows = f32[64]{0} fusion(%wide, %zero.1), kind=kInput, calls=%fused_rows, metadata={op_name="jit(step)/jvp(net)/reduce_sum"}
  %start.1 = (s32[], f32[64,128]{1,0}) tuple(%zero.1, %weight)
  %while.1 = (s32[], f32[64,128]{1,0}) while(%start.1), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %updated = f32[64,128]{1,0} get-tuple-element(%while.1), index=1
  %new = f32[64,128]{1,0} fusion(%updated, %weight), kind=kLoop, calls=%fused_add, metadata={op_name="jit(step)/sub"}
  ROOT %out = (f32[64,128]{1,0}, f32[64]{0}) tuple(%new, %rows)
}
"""
GPU = device("h100-sxm-80gb")
SIZES = {"argument": 425_984, "output": 33_024, "alias": 32_768, "temp": 300_000}


def test_a_schedule_becomes_calls_with_loops_written_out() -> None:
    trace = trace_of(CompiledModule(MODULE, SIZES), GPU)
    names = [call.op.name for call in trace if ops.launches(call.op)]
    assert names == [
        "aten.mm",
        "xla.custom_call.their_kernel",
        "xla.reduction",
        *["xla.loop"] * 6,
    ]
    matmul, _, rows, first, *_ = (call for call in trace if ops.launches(call.op))
    assert [t.shape for t in matmul.op.inputs] == [(256, 64), (64, 128)]
    assert matmul.op.attr("precision") == "tf32"
    assert (rows.op.attr("points"), rows.op.attr("reduction")) == (64, 128)
    # Of the ten slices one is read, and the index.
    assert rows.op.attr("read_bytes") == 64 * 128 * 4 + 4
    assert (first.phase, first.module, first.line) == (Phase.BACKWARD, "net.blocks.1", "train.py:12")
    assert trace.calls[-1].phase is Phase.OPTIMIZER


def test_values_lead_from_call_to_call() -> None:
    trace = trace_of(CompiledModule(MODULE, SIZES), GPU)
    loops = [call for call in trace if call.op.name == "xla.loop"]
    for before, after in zip(loops, loops[1:], strict=False):
        assert before.writes[0] in after.reads
    for call in trace:
        assert [trace.values[v].spec for v in call.reads] == list(call.op.inputs)
        assert [trace.values[v].spec for v in call.writes] == list(call.op.outputs)


def test_memory_is_what_xla_says() -> None:
    needed = wavecast.memory(trace_of(CompiledModule(MODULE, SIZES), GPU), GPU)
    whole = SIZES["argument"] + SIZES["output"] - SIZES["alias"] + SIZES["temp"]
    assert needed.peak_bytes == pytest.approx(whole, rel=0.02)
    roles = {a.role for a in needed.trace.allocations}
    assert {Role.PARAMETER, Role.INPUT, Role.WORKSPACE} <= roles


def test_what_cannot_be_read_is_unpredicted_by_name() -> None:
    prediction = wavecast.predict(trace_of(CompiledModule(MODULE, SIZES), GPU), GPU)
    assert "their_kernel" in str(prediction.unpredicted)
    assert prediction.seconds > 0


def test_a_trace_serves_only_the_gpu_that_it_was_compiled_for() -> None:
    trace = trace_of(CompiledModule(MODULE, SIZES), GPU)
    elsewhere = wavecast.predict(trace, "h200-sxm")
    assert any("XLA compiled the step for h100-sxm-80gb" in note for note in elsewhere.notes)


def test_a_loop_of_unknown_length_is_named() -> None:
    schedule = scheduled(read_hlo(MODULE.replace('"known_trip_count":{"n":"5"}', "")))
    names = [call.op.name for call in schedule.calls]
    assert "xla.while_of_unknown_length" in names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no HLO module"),
        ("HloModule x\n", "not scheduled"),
        ("HloModule x, is_scheduled=true\n", "no ENTRY"),
    ],
)
def test_other_texts_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_hlo(text)


def test_names_of_operations_are_read() -> None:
    flax = "jit(step)/transpose(jvp(ResNet))/stage.0/Conv_0/conv_general_dilated"
    assert module_of(flax) == "ResNet.stage.0.Conv_0"
    assert phase_of(flax) is Phase.BACKWARD
    assert module_of("jit(step)/jvp(while)/body/jit(softmax)/exp") == ""
    assert argument_of("state['params']['blocks'][3]['w']") == "state.params.blocks.3.w"
    assert argument_of("state.opt_state[0].mu['w']") == "state.opt_state.0.mu.w"
