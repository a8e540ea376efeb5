"""Scheduled HLO becomes calls: fusions, libraries, loops, and what nobody can read, by name."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import wavecast
from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.frameworks.jax.assembly import (
    argument_of,
    argument_ranks,
    first_group,
    module_of,
    phase_of,
    scheduled,
)
from wavecast.frameworks.jax.driver import CompiledModule
from wavecast.frameworks.jax.hlo import read_hlo
from wavecast.frameworks.jax.tracing import trace_of
from wavecast.hardware.devices import device
from wavecast.parallel.ranks import own_strategy
from wavecast.parallel.strategy import Parallel
from wavecast.targets.sources import largest_traced_batch
from wavecast.traces.step import Phase, Role

MODULE = Path(__file__).with_name("step.hlo").read_text(encoding="utf-8")
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
    assert (first.phase, first.module, first.line) == (
        Phase.BACKWARD,
        "net.blocks.1",
        "train.py:12",
    )
    assert trace.calls[-1].phase is Phase.OPTIMIZER


def test_values_lead_from_call_to_call() -> None:
    trace = trace_of(CompiledModule(MODULE, SIZES), GPU)
    loops = [call for call in trace if call.op.name == "xla.loop"]
    for before, after in pairwise(loops):
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


def test_the_largest_batch_has_the_memory_that_jax_takes() -> None:
    trace = trace_of(CompiledModule(MODULE, SIZES), GPU)
    limit = largest_traced_batch(lambda _: trace, GPU).limit_bytes
    assert limit == wavecast.memory(trace, GPU).allocatable_bytes == int(0.75 * GPU.memory_bytes)


def test_what_cannot_be_read_is_unpredicted_by_name() -> None:
    prediction = wavecast.predict(trace_of(CompiledModule(MODULE, SIZES), GPU), GPU)
    assert "their_kernel" in str(prediction.unpredicted)
    assert prediction.seconds > 0


CONVOLUTION = """HloModule jit_step, is_scheduled=true

%fused_turn (p.0: f32[3,3,64,64]) -> f32[64,3,3,64] {
  %p.0 = f32[3,3,64,64]{3,2,1,0} parameter(0)
  ROOT %turn = f32[64,3,3,64]{3,2,1,0} transpose(%p.0), dimensions={3,0,1,2}
}

%fused_update (u.0: f32[64,3,3,64], u.1: f32[64,3,3,64]) -> f32[3,3,64,64] {
  %u.0 = f32[64,3,3,64]{3,2,1,0} parameter(0)
  %u.1 = f32[64,3,3,64]{3,2,1,0} parameter(1)
  %less = f32[64,3,3,64]{3,2,1,0} subtract(%u.0, %u.1), metadata={op_name="jit(step)/sub"}
  ROOT %back = f32[3,3,64,64]{3,2,1,0} transpose(%less), dimensions={1,2,3,0}
}

ENTRY %main (w: f32[3,3,64,64], x: f32[8,32,32,64]) -> f32[3,3,64,64] {
  %w = f32[3,3,64,64]{3,2,1,0} parameter(0), metadata={op_name="params['w']"}
  %x = f32[8,32,32,64]{3,2,1,0} parameter(1), metadata={op_name="x"}
  %turned = f32[64,3,3,64]{3,2,1,0} fusion(%w), kind=kInput, calls=%fused_turn, FORWARD
  %conv = (f32[8,32,32,64]{3,2,1,0}, u8[0]{0}) custom-call(%x, %turned), LAYOUT, \
custom_call_target="__cudnn$convForward", FORWARD
  %y = f32[8,32,32,64]{3,2,1,0} get-tuple-element(%conv), index=0
  %conv.1 = (f32[64,3,3,64]{3,2,1,0}, u8[0]{0}) custom-call(%x, %y), LAYOUT, \
custom_call_target="__cudnn$convBackwardFilter", BACKWARD
  %gradient = f32[64,3,3,64]{3,2,1,0} get-tuple-element(%conv.1), index=0
  ROOT %new = f32[3,3,64,64]{3,2,1,0} fusion(%turned, %gradient), kind=kInput, \
calls=%fused_update, FORWARD
}
"""
for word, text in {
    "LAYOUT": "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f",
    "FORWARD": 'metadata={op_name="jit(step)/jvp(net)/conv"}',
    "BACKWARD": 'metadata={op_name="jit(step)/transpose(jvp(net))/conv"}',
}.items():
    CONVOLUTION = CONVOLUTION.replace(word, text)
CONVOLUTION_SIZES = {"argument": 2_244_608, "output": 147_456, "alias": 0, "temp": 2_392_064}


def test_a_filter_whose_copy_is_updated_is_a_parameter() -> None:
    """XLA lays filters out anew, updates the copy, and names the update after the forward pass."""
    trace = trace_of(CompiledModule(CONVOLUTION, CONVOLUTION_SIZES), GPU)
    assert trace.calls[-1].phase is Phase.OPTIMIZER
    by_role = {a.role: a for a in trace.allocations if a.born is None}
    assert by_role[Role.PARAMETER].nbytes == 4 * 9 * 64 * 64
    assert by_role[Role.INPUT].nbytes == 4 * 8 * 32 * 32 * 64


def test_a_convolution_has_the_workspace_that_a_gpu_would_choose() -> None:
    """Without a GPU XLA says 0; a weight's gradient holds a tile of partial sums in every SM."""
    needed = wavecast.memory(trace_of(CompiledModule(CONVOLUTION, CONVOLUTION_SIZES), GPU), GPU)
    tiles = 132 * 128 * 128 * 4
    (call,) = (n for n, c in enumerate(needed.trace) if c.op.base == "aten.convolution_backward")
    scratch = [a for a in needed.trace.allocations if a.role is Role.WORKSPACE and a.born == call]
    assert [(a.nbytes, a.freed) for a in scratch] == [(tiles, call + 1)]
    whole = sum(CONVOLUTION_SIZES.values())
    assert needed.peak_bytes == pytest.approx(whole + tiles, rel=0.02)


def test_a_type_that_is_not_known_is_said() -> None:
    text = MODULE.replace("%x = f32[64,256]", "%x = f6e3m2fn[64,256]")
    prediction = wavecast.predict(trace_of(CompiledModule(text, SIZES), GPU), GPU)
    assert "xla.unknown_type.f6e3m2fn" in str(prediction.unpredicted)
    inside = CONVOLUTION.replace("%less = f32", "%less = f6e3m2fn")
    trace = trace_of(CompiledModule(inside, CONVOLUTION_SIZES), GPU)
    assert trace.calls[-1].op.name == "xla.unknown_type.f6e3m2fn"


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


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("replica_groups={{0,1},{2,3}}, dimensions={0}", [0, 1]),
        ("replica_groups=[4,2]<=[8], use_global_device_ids=true", [0, 1]),
        ("replica_groups=[2,4]<=[4,2]T(1,0), dimensions={1}", [0, 2, 4, 6]),
        ("replica_groups=mesh['data'=2,'model'=4] {'model'}, dimensions={0}", [0, 1, 2, 3]),
        ("replica_groups=mesh['data'=2,'model'=4] {'data'}, dimensions={0}", [0, 4]),
        ("replica_groups=mesh['x'=8] {'x':(2)2}, dimensions={0}", [0, 2]),
        ("source_target_pairs={{1,0},{0,1}}", [1, 0]),
        ("dimensions={0}", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_ranks_of_a_collective_are_read(text: str, group: list[int]) -> None:
    assert first_group(text, 8) == group


SPREAD = """HloModule jit_step, is_scheduled=true, num_partitions=8

ENTRY %main (x: f32[1024,1024], y: f32[1024,1024]) -> (f32[1024,1024], f32[1024,1024]) {
  %x = f32[1024,1024]{1,0} parameter(0)
  %y = f32[1024,1024]{1,0} parameter(1)
  %sum = f32[1024,1024]{1,0} all-reduce-start(%x), replica_groups=[1,8]<=[8]
  %beside = f32[1024,1024]{1,0} add(%y, %y)
  %summed = f32[1024,1024]{1,0} all-reduce-done(%sum)
  %after = f32[1024,1024]{1,0} add(%summed, %beside)
  %all = f32[8192,1024]{1,0} all-gather(%after), replica_groups=[1,8]<=[8], dimensions={0}
  %last = f32[8192,1024]{1,0} add(%all, %all)
  ROOT %both = (f32[1024,1024]{1,0}, f32[8192,1024]{1,0}) tuple(%after, %last)
}
"""


def test_kernels_run_beside_a_collective_until_they_need_it() -> None:
    sizes = {"argument": 2**23, "output": 2**25, "alias": 0, "temp": 2**23}
    trace = trace_of(CompiledModule(SPREAD, sizes), GPU)
    order = [(call.op.name, call.stream) for call in trace][2:]
    assert order == [
        ("cuda.stream_wait", 1),
        ("nccl.all_reduce", 1),
        ("cuda.event_record", 1),
        ("xla.loop", 0),
        ("cuda.stream_wait", 0),
        ("xla.loop", 0),
        ("cuda.stream_wait", 1),
        ("nccl.all_gather", 1),
        ("cuda.event_record", 1),
        ("cuda.stream_wait", 0),
        ("xla.loop", 0),
    ]
    step = wavecast.predict(trace, GPU, parallel=wavecast.Parallel(data=8, cluster="dgx-h100"))
    (stage,) = step.stages
    hidden_s = stage.communication_s - stage.exposed_s
    assert 0 < hidden_s < stage.communication_s


def test_a_jax_step_is_spread_by_its_own_code_alone() -> None:
    trace = trace_of(CompiledModule(MODULE, SIZES), GPU)
    with pytest.raises(InvalidInput, match="--ranks instead of --parallel"):
        wavecast.predict(trace, GPU, parallel=wavecast.Parallel(data=8, cluster="dgx-h100"))


SHARDED = """HloModule step, is_scheduled=true, num_partitions=8

ENTRY %main (p: f32[128,1024], n: f32[512], t: s32[8,128]) -> (f32[128,1024], f32[256]) {
  %p = f32[128,1024]{1,0} parameter(0), sharding={devices=[4,2]<=[8]}, metadata={op_name="w[0]"}
  %n = f32[512]{0} parameter(1), sharding={replicated}, metadata={op_name="w[1]"}
  %t = s32[8,128]{1,0} parameter(2), sharding=@, metadata={op_name="batch[0]"}
  %half = f32[256]{0} slice(%n), slice={[0:256]}
  ROOT %made = (f32[128,1024]{1,0}, f32[256]{0}) tuple(%p, %half)
}
"""


@pytest.mark.parametrize(
    ("batch", "ranks"),
    [
        ("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", (4, 8)),
        ("{replicated}", (1, 8)),
        ("{devices=[1,8]<=[8]}", ()),  # the samples of a step in turn, or parts of each
        ("{manual}", ()),
    ],
)
def test_the_shardings_of_arguments_say_what_ranks_share(
    batch: str, ranks: tuple[int, ...]
) -> None:
    module = read_hlo(SHARDED.replace("@", batch))
    assert tuple(number for _, number in argument_ranks(module)) == ranks
    trace = trace_of(CompiledModule(SHARDED.replace("@", batch), SIZES), GPU, samples=32)
    assert trace.samples == 32 // (ranks[0] if ranks else 1)
    if ranks:
        others = 8 // ranks[0]
        shard = 3 if ranks[0] > 1 else 0
        assert own_strategy(trace, 8) == Parallel(data=ranks[0], tensor=others, shard=shard)


def test_a_step_on_one_device_says_nothing_of_ranks() -> None:
    assert argument_ranks(read_hlo(MODULE)) == ()
