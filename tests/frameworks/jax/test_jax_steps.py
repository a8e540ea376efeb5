"""JAX steps are compiled by XLA for GPUs that are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import wavecast
from wavecast import ops
from wavecast.cli import app
from wavecast.errors import InvalidInput, MissingExtra
from wavecast.frameworks.jax.driver import in_old_form, target_config
from wavecast.hardware.devices import device
from wavecast.targets.sources import target_source
from wavecast.targets.targets import resolve

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax")

STEP = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def loss(params, x):
    with jax.named_scope("net"):
        hidden = jax.nn.relu(x @ params["w1"])
        return jnp.square(hidden @ params["w2"]).mean()


def train_step(params, x):
    value, gradients = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def make_step(batch=256):
    params = {"w1": jnp.zeros((512, 1024)), "w2": jnp.zeros((1024, 512))}
    return jax.jit(train_step, donate_argnums=0), (params, jnp.zeros((batch, 512)))


def _spread(up, down, batch, *sizes):
    names = ("data", "model")[-len(sizes):]
    mesh = Mesh(np.array(jax.devices()).reshape(sizes), names)
    def shape(dims, *axes):
        return jax.ShapeDtypeStruct(dims, "float32", sharding=NamedSharding(mesh, P(*axes)))
    params = {"w1": shape((512, 1024), *up), "w2": shape((1024, 512), *down)}
    kept = jax.tree.map(lambda one: one.sharding, params)
    step = jax.jit(train_step, donate_argnums=0, out_shardings=(kept, NamedSharding(mesh, P())))
    return step, (params, shape((1024, 512), *batch))


def make_data_parallel():
    return _spread((), (), ("model",), 8)


def make_fully_sharded():
    return _spread(("model",), ("model",), ("model",), 8)


def make_tensor_parallel():
    return _spread((None, "model"), ("model", None), (), 8)


def make_both():
    return _spread((None, "model"), ("model", None), ("data",), 2, 4)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jax") / "train.py"
    path.write_text(STEP)
    return path


@pytest.fixture(scope="module")
def traces(file: Path) -> wavecast.FamilyTraces:
    scope: dict[str, Any] = {}
    exec(compile(STEP, str(file), "exec"), scope)
    step, arguments = scope["make_step"]()
    return wavecast.trace_jax(step, *arguments, gpus=["h100-sxm-80gb", "l4"], samples=256)


def test_a_step_is_compiled_for_each_gpu(traces: wavecast.FamilyTraces) -> None:
    hopper, ada = (traces.on(device(name)) for name in ("h100-sxm-80gb", "l4"))
    assert hopper is not ada
    for trace in (hopper, ada):
        matmuls = [call for call in trace if ops.kind(call.op) is ops.Kind.MATMUL]
        assert len(matmuls) == 5  # two forward; two and one backward, since x needs no gradient
        assert sum(ops.executed_flops(c.op) or 0 for c in matmuls) == 5 * 2 * 256 * 512 * 1024
        assert {call.module for call in matmuls} == {"net"}
        assert trace.framework.startswith("jax ")
        assert "pjrt" in trace.framework
    assert (
        wavecast.predict(traces, "l4").seconds > wavecast.predict(traces, "h100-sxm-80gb").seconds
    )


def test_the_memory_of_weights_is_known(traces: wavecast.FamilyTraces) -> None:
    needed = wavecast.memory(traces, "l4")
    assert needed.by_kind["weights"] == 2 * 512 * 1024 * 4
    assert needed.by_kind["inputs"] == 256 * 512 * 4
    assert needed.fits


def test_a_trace_is_saved_and_loaded(traces: wavecast.FamilyTraces, tmp_path: Path) -> None:
    trace = traces.traces[0]
    trace.save(tmp_path / "step.json.gz")
    assert wavecast.load_trace(tmp_path / "step.json.gz") == trace


def test_the_command_line_takes_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app(["predict", f"{file}:make_step", "--gpu", "l4", "--batch", "128"], standalone_mode=False)
    assert "l4" in capsys.readouterr().out


@pytest.mark.slow
def test_steps_on_eight_devices_have_the_collectives_of_their_sharding(file: Path) -> None:
    code = (
        "from wavecast.parallel.ranks import own_strategy\n"
        "from dataclasses import replace\n"
        "from wavecast.targets.targets import resolve\n"
        "from wavecast.targets.sources import target_source\n"
        "for name in ('data_parallel', 'fully_sharded', 'tensor_parallel', 'both'):\n"
        f"    target = replace(resolve({str(file)!r} + ':make_' + name), ranks=8)\n"
        "    trace = target_source(target).on()\n"
        "    found = {(c.op.name, c.op.attr('ranks'), c.op.attr('stride')) for c in trace\n"
        "             if 'nccl' in c.op.name and c.op.inputs[0].numel > 1}\n"
        "    own = own_strategy(trace, 8)\n"
        "    print(name, own.data, own.tensor, own.shard, *sorted(found), sep='; ')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = dict(line.split("; ", 1) for line in run.stdout.splitlines())
    assert said == {
        "data_parallel": "8; 1; 0; ('nccl.all_reduce', 8, 1)",
        "fully_sharded": "8; 1; 3; ('nccl.all_gather', 8, 1); ('nccl.reduce_scatter', 8, 1)",
        "tensor_parallel": "1; 8; 0; ('nccl.all_reduce', 8, 1)",
        "both": "2; 4; 0; ('nccl.all_reduce', 2, 4); ('nccl.all_reduce', 4, 1)",
    }


def test_options_of_torch_are_refused(file: Path) -> None:
    from dataclasses import replace

    target = replace(resolve(f"{file}:make_step"), compiled=True)
    with pytest.raises(InvalidInput, match="leave out --compile"):
        target_source(target).on()


def test_other_vendors_are_refused() -> None:
    with pytest.raises(InvalidInput, match="NVIDIA GPUs"):
        target_config(device("mi300x"))


def test_other_systems_are_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(MissingExtra, match="Linux only"):
        wavecast.trace_jax(lambda x: x, 1.0)


def test_a_function_that_returns_no_step_is_told_the_form(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("import jax\ndef make_step():\n    return 3\n")
    with pytest.raises(InvalidInput, match="return step, \\(state, batch\\)"):
        target_source(resolve(f"{path}:make_step")).on()


def test_our_h200_is_described_as_xla_describes_it() -> None:
    """The fields of the GPU's own description that a compilation reads."""
    config = target_config(device("h200-sxm"))
    for field in (
        "shared_memory_per_core: 233472",
        "shared_memory_per_block_optin: 232448",
        "threads_per_core_limit: 2048",
        "core_count: 132",
        "fpus_per_core: 128",
        "l2_cache_size: 62914560",
        "clock_rate_ghz: 1.98",
        "device_memory_size: 150109880320",
        "registers_per_core_limit: 65536",
        "cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }",
    ):
        assert field in config


def test_older_compilers_are_given_the_fields_that_they_know() -> None:
    config = in_old_form(target_config(device("l4")))
    assert "core_count: 58" in config
    assert not any(name in config for name in ("driver_version", "device_vendor", "  name:"))
