"""Steps that do more than matmuls: branches, callbacks, kernels and libraries of others."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

import wavecast
from wavecast.frameworks.jax.assembly import scheduled
from wavecast.frameworks.jax.driver import CompiledModule, make_stand_ins
from wavecast.frameworks.jax.hlo import read_hlo
from wavecast.frameworks.jax.tracing import trace_of
from wavecast.hardware.devices import device

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax")
GPU = device("h200-sxm")
BRANCHES = """HloModule jit_step, is_scheduled=true

%square (a: f32[64,64]) -> f32[64,64] {
  %a = f32[64,64]{1,0} parameter(0)
  ROOT %b = f32[64,64]{1,0} multiply(%a, %a)
}

%turn (t: (s32[], f32[64,64])) -> (s32[], f32[64,64]) {
  %t = (s32[], f32[64,64]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %x = f32[64,64]{1,0} get-tuple-element(%t), index=1
  %y = f32[64,64]{1,0} fusion(%x), kind=kLoop, calls=%square
  ROOT %next = (s32[], f32[64,64]{1,0}) tuple(%n, %y)
}

%few (f: (f32[8,8], f32[64,64])) -> f32[64,64] {
  %f = (f32[8,8]{1,0}, f32[64,64]{1,0}) parameter(0)
  %small = f32[8,8]{1,0} get-tuple-element(%f), index=0
  %large = f32[64,64]{1,0} get-tuple-element(%f), index=1
  %one = f32[64,64]{1,0} fusion(%large), kind=kLoop, calls=%square
  %two = f32[64,64]{1,0} fusion(%one), kind=kLoop, calls=%square
  %three = f32[64,64]{1,0} fusion(%two), kind=kLoop, calls=%square
  ROOT %four = f32[64,64]{1,0} fusion(%three), kind=kLoop, calls=%square
}

%many (m: (s32[], f32[64,64])) -> f32[64,64] {
  %m = (s32[], f32[64,64]{1,0}) parameter(0)
  %loop = (s32[], f32[64,64]{1,0}) while(%m), body=%turn, backend_config={@}
  ROOT %out = f32[64,64]{1,0} get-tuple-element(%loop), index=1
}

ENTRY %main (which: pred[], s: f32[8,8], l: f32[64,64], i: s32[]) -> f32[64,64] {
  %which = pred[] parameter(0)
  %s = f32[8,8]{1,0} parameter(1)
  %l = f32[64,64]{1,0} parameter(2)
  %i = s32[] parameter(3)
  %first = (f32[8,8]{1,0}, f32[64,64]{1,0}) tuple(%s, %l)
  %second = (s32[], f32[64,64]{1,0}) tuple(%i, %l)
  ROOT %chosen = f32[64,64]{1,0} conditional(%which, %first, %second), @
}
"""
BRANCHES = BRANCHES.replace("{@}", '{"known_trip_count":{"n":"9"}}').replace(
    "@", "branch_computations={%few, %many}"
)


def test_the_longest_branch_is_the_one_with_most_work_and_gets_its_own_operands() -> None:
    schedule = scheduled(read_hlo(BRANCHES))
    squares = [call for call in schedule.calls if call.op.name == "xla.loop"]
    assert len(squares) == 9
    assert {call.op.inputs[0].shape for call in squares} == {(64, 64)}


def test_longer_sorts_take_longer_for_each_element() -> None:
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (x: f32[@]) -> f32[@] {
  %x = f32[@]{1,0} parameter(0)
  ROOT %sorted = f32[@]{1,0} sort(%x), dimensions={1}, to_apply=%less
}
"""

    def operations(size: str) -> float:
        calls = scheduled(read_hlo(text.replace("@", size))).calls
        (arithmetic,) = (
            call.op.attr("arithmetic") for call in calls if call.op.attr("fused") == "sort"
        )
        assert isinstance(arithmetic, float)
        return arithmetic

    assert operations("512,1024") / operations("65536,8") == 55 / 6


def test_tokens_are_values_without_data() -> None:
    text = """HloModule jit_step, is_scheduled=true

ENTRY %main (x: f32[64,64], t: token[]) -> (token[], f32[64,64]) {
  %x = f32[64,64]{1,0} parameter(0)
  %t = token[] parameter(1)
  %told = (token[], f32[64,64]{1,0}) custom-call(%t, %x), custom_call_target="@"
  %after = token[] get-tuple-element(%told), index=0
  %y = f32[64,64]{1,0} get-tuple-element(%told), index=1
  ROOT %out = (token[], f32[64,64]{1,0}) tuple(%after, %y)
}
"""
    sizes = {"argument": 16_384, "output": 16_384, "alias": 0, "temp": 0}
    text = text.replace("@", "xla_ffi_python_gpu_callback")
    trace = trace_of(CompiledModule(text, sizes), GPU)
    (call,) = (call for call in trace if call.op.name == "xla.host_callback")
    assert [trace.values[value].spec for value in call.writes] == list(call.op.outputs)
    assert wavecast.predict(trace, GPU).unpredicted == {"xla.host_callback": 1}


def test_ptxas_says_the_newest_version_that_it_knows(tmp_path: Any) -> None:
    file = tmp_path / "probe.ptx"
    file.write_text(".version 99.99\n.target sm_90\n")
    ptxas = make_stand_ins(tmp_path / "cuda") / "bin" / "ptxas"
    run = subprocess.run(
        [ptxas, file, "-o", tmp_path / "x"], capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert "current version is '9.0'" in run.stderr


def _odd_step(w: Any, x: Any) -> Any:
    """A step with a Fourier transform, a factorisation, a callback and a kernel of Pallas."""
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def double(read: Any, write: Any) -> None:
        write[...] = 2 * read[...]

    def loss(w: Any) -> Any:
        low = jnp.fft.irfft(jnp.fft.rfft(x @ w))
        return jnp.square(jnp.linalg.cholesky(low.T @ low + jnp.eye(128))).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    jax.debug.print("loss {}", value)
    doubled = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(w.shape, w.dtype))(gradient)
    return w - doubled, value


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_others_wrote_is_named_and_does_not_end_the_compilation() -> None:
    shapes = [
        jax.ShapeDtypeStruct((128, 128), "float32"),
        jax.ShapeDtypeStruct((256, 128), "float32"),
    ]
    trace = wavecast.trace_jax(_odd_step, *shapes, gpu=GPU)
    names = {call.op.base for call in trace}
    assert {"aten._fft_r2c", "aten._fft_c2r"} <= names
    unpredicted = wavecast.predict(trace, GPU).unpredicted
    assert any("potrf" in name for name in unpredicted)
    assert any("pallas" in name for name in unpredicted)
    assert "xla.host_callback" in unpredicted
