"""What advice changes in JAX steps: donated arguments, remat, and what it leaves to torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import wavecast
from wavecast.advice.catalogue import CHANGES, OF_JAX, TargetVariants, changed_target
from wavecast.errors import InvalidInput
from wavecast.footprint.memory import JAX_SHARE
from wavecast.frameworks.jax.driver import CompiledModule
from wavecast.frameworks.jax.steps import NAMES, rematerialized, with_donation
from wavecast.frameworks.jax.tracing import trace_of
from wavecast.hardware.devices import device
from wavecast.targets.targets import resolve

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax")
GPU = device("l4")


def _step(params: Any, x: Any) -> Any:
    loss = lambda params: jax.numpy.square(jax.numpy.tanh(x @ params)).mean()  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(params)
    return params - 0.1 * gradient, value


def _arguments() -> tuple[Any, Any]:
    return jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((8, 64), "float32")


def test_arguments_with_the_shapes_of_results_are_donated() -> None:
    step = with_donation(jax.jit(_step), _arguments())
    assert step.lower(*_arguments()).as_text().count("tf.aliasing_output") == 1
    with pytest.raises(InvalidInput, match="donated already"):
        with_donation(step, _arguments())
    with pytest.raises(InvalidInput, match="no argument has the shapes"):
        with_donation(jax.jit(lambda params, x: params.sum()), _arguments())


def test_remat_computes_activations_again() -> None:
    def tanhs(names: tuple[str, ...]) -> int:
        with rematerialized(names):
            traced = jax.jit(lambda params, x: _step(params, x)).trace(*_arguments())
        return str(traced.jaxpr).count("tanh")

    assert tanhs(("remat",)) > tanhs(())
    assert jax.value_and_grad.__module__.startswith("jax")
    with pytest.raises(InvalidInput, match="takes no gradient"), rematerialized(("remat",)):
        pass


def test_jax_steps_are_tried_with_changes_of_jax_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import jax\ndef make_step(precision='fp32'):\n    return None\n")
    target = resolve(f"{path}:make_step")
    assert set(CHANGES) - TargetVariants(target, GPU).unsuitable == {*OF_JAX, "batch"}
    assert changed_target(target, ["jax_bf16"]).precision == "bf16"
    assert changed_target(target, list(NAMES)).changes == NAMES
    assert TargetVariants(resolve("resnet50"), GPU).unsuitable >= OF_JAX


def test_jax_leaves_a_quarter_of_the_memory_unused() -> None:
    module = Path(__file__).with_name("step.hlo").read_text(encoding="utf-8")
    used = int(0.8 * GPU.memory_bytes)
    sizes = {"argument": 425_984, "output": 33_024, "alias": 32_768, "temp": used}
    needed = wavecast.memory(trace_of(CompiledModule(module, sizes), GPU), GPU)
    assert needed.allocatable_bytes == int(JAX_SHARE * GPU.memory_bytes)
    assert not needed.fits
    assert any("XLA_PYTHON_CLIENT_MEM_FRACTION" in note for note in needed.notes)
