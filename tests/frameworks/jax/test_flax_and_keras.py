"""Modules of Flax and layers of Keras are the modules of a JAX step, and Keras models are steps."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from wavecast.errors import InvalidInput
from wavecast.frameworks.jax.assembly import module_of
from wavecast.frameworks.jax.hlo import read_hlo
from wavecast.frameworks.jax.tracing import named_modules
from wavecast.frameworks.target_files import backend_of, choose_backend, imports_of

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax = pytest.importorskip("jax")


def test_calls_of_nnx_modules_are_scopes() -> None:
    nnx: Any = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.up = nnx.Linear(4, 8, rngs=rngs)
            self.down = nnx.Linear(8, 4, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + self.down(self.up(x))

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.blocks = nnx.List([Block(rngs) for _ in range(2)])

        def __call__(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return x

    net, x = Net(nnx.Rngs(0)), jax.numpy.zeros((2, 4))
    before = Net.__call__
    with named_modules([net, x]):
        text = nnx.jit(lambda net, x: net(x)).lower(net, x).as_text(debug_info=True)
    assert Net.__call__ is before
    for name in ("Net/blocks.0/up/dot_general", "Net/blocks.1/down/dot_general"):
        assert name in text


def test_a_module_that_calls_itself_is_named_once() -> None:
    assert module_of("jit(step)/jvp(Net)/block_0/attn/attn/query/dot_general") == (
        "Net.block_0.attn.query"
    )


def test_a_fusion_without_a_path_has_that_of_what_it_fuses() -> None:
    module = read_hlo(
        """HloModule jit_step, is_scheduled=true

%fused (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} add(%a, %a), metadata={op_name="jit(step)/jvp(net)/add"}
  ROOT %c = f32[8]{0} negate(%b)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0), metadata={op_name="x"}
  ROOT %made = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
}
"""
    )
    assert module.origin(module.entry.root).op_name == "jit(step)/jvp(net)/add"


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ('import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras', "torch"),
        ('import os\nos.environ.setdefault("KERAS_BACKEND", "jax")\nimport keras', "jax"),
        ("import keras", "jax"),
    ],
)
def test_the_framework_of_keras_is_the_one_that_the_file_chooses(
    text: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert backend_of(ast.parse(text)) == backend
    path = tmp_path / "train.py"
    path.write_text(text)
    imports = imports_of(str(path))
    assert (imports.jax, imports.keras) == (backend == "jax", backend)


def test_tensorflow_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import tensorflow as tf\nimport keras\n")
    imports = imports_of(str(path))
    assert imports.keras == "tensorflow"
    with pytest.raises(InvalidInput, match="set KERAS_BACKEND=jax"):
        choose_backend(imports.keras)


KERAS = """
import keras


def make_model():
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(128, activation="relu", name="stem"),
            keras.layers.Dense(10, name="head"),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
"""

CODE = """
import sys
from wavecast import ops
from wavecast.targets.sources import target_source
from wavecast.targets.targets import resolve

trace = target_source(resolve(sys.argv[1] + ":make_model", batch=32, precision="bf16")).on()
matmuls = [c for c in trace if ops.kind(c.op) is ops.Kind.MATMUL]
print(len(matmuls), sorted({c.module.rpartition(".")[2] for c in matmuls}))
print(sorted({c.op.inputs[-1].dtype for c in matmuls}))
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("keras") is None, reason="needs Keras")
@pytest.mark.parametrize(("backend", "layers"), [("jax", ["head", "stem"]), ("torch", ["Dense"])])
def test_a_compiled_keras_model_is_a_step_on_jax_and_on_torch(
    backend: str, layers: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(KERAS)
    run = subprocess.run(
        [sys.executable, "-c", CODE, str(path)],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = run.stdout.splitlines()
    assert first == f"5 {layers}"  # two forward, three backward: the input has no gradient
    assert second == "['bfloat16']"
